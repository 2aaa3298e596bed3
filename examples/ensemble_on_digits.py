"""One network against an ensemble on real digits; 8 and 9 are never trained on.

Run it with ``python examples/ensemble_on_digits.py``.
"""

from coset import DeepEnsemble, MaximumAPosteriori, data, fit, metrics, models

SHOWN = (
    "accuracy",
    "negative_log_likelihood",
    "brier",
    "expected_calibration_error",
    "auroc",
)


def main(*, members: int = 10, epochs: int = 60) -> dict[str, dict[str, float]]:
    known, unseen = data.holding_out(data.digits(), [8, 9])
    base = MaximumAPosteriori(epochs=epochs)
    methods = {"one network": base, "ensemble": DeepEnsemble(members=members, base=base)}

    scores = {}
    for name, method in methods.items():
        module = models.mlp(64, (64, 64), len(known.classes))
        predictor = fit(module, known.train, method=method)
        scores[name] = metrics.evaluate(
            predictor, known.test, outliers=unseen.test, metrics=list(SHOWN)
        )

    print(f"{'':28s}" + "".join(f"{name:>14s}" for name in scores))
    for metric in SHOWN:
        print(f"{metric:28s}" + "".join(f"{scores[name][metric]:14.3f}" for name in scores))
    return scores


if __name__ == "__main__":
    main()
