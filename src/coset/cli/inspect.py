"""``coset inspect``: the symmetries of a network, as a table and as a picture."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from coset.cli.factory import check_kinds, source_of
from coset.cli.places import check_file


def inspect(
    factory: Annotated[str, Parameter(name="MODULE:FACTORY", show_default=False)],
    /,
    *,
    input_shape: Annotated[list[str] | None, Parameter(negative="")] = None,
    dtype: Annotated[list[Literal["float", "int"]] | None, Parameter(negative="")] = None,
    svg: Path | None = None,
    explain: str | None = None,
) -> None:
    """Shows which weights of a network can be permuted and scaled without changing its outputs.

    The network is traced, its symmetries are found and checked in double precision. Nothing is
    trained, and no data are needed.

    Args:
        factory: A function without arguments that gives a module, as package.module:function or
            ./file.py:function. Example: coset.models:resnet20
        input_shape: Shape of the input with its batch axis, such as 1,3,32,32; once for each input.
            Guessed from the first layer when missing.
        dtype: float, or int for token numbers; once for all inputs or once for each.
        svg: File for a picture of the network with its factors coloured.
        explain: A tensor's name: why each of its axes is free, tied or pinned.
    """
    check_kinds(input_shape, dtype)
    if svg is not None:
        check_file("--svg", svg, [source_of(factory)])

    from coset.cli.factory import load_module, read_inputs
    from coset.symmetry.check import symmetry_error
    from coset.symmetry.discover import discover

    module = load_module(factory)
    inputs = read_inputs(module, input_shape or [], dtype or ["float"])
    group = discover(module, inputs)
    explained = "" if explain is None else group.explain(explain)
    error = symmetry_error(module, group, inputs)
    if svg is not None:
        from coset.store import write_text
        from coset.symmetry.describing.drawing import draw

        write_text(svg, draw(module, inputs, group))
    weights = sum(tensor.numel() for tensor in module.parameters())
    shapes = ", ".join("×".join(map(str, x.shape)) for x in inputs)
    print(f"{factory}: {weights:,} parameters, input {shapes}\n")
    print(group)
    print(f"symmetry error: {error:.1e} over 8 random elements, in double precision")
    if explained:
        print(f"\n{explained}")
    if svg is not None:
        print(f"\nPicture: {svg}")
