// The explorers of a page. Each element with data-explorer="KIND" holds its numbers as JSON, and
// draws what its reader picks. Every control is a native one, so a keyboard is enough.
(() => {
"use strict";

const KINDS = { pair, evidence, prune };

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && typeof value !== "string") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function select(label, options, chosen, changed) {
  const box = make("select");
  options.forEach((text, place) => box.append(make("option", { value: String(place) }, text)));
  box.value = String(chosen);
  box.addEventListener("change", changed);
  return [make("label", {}, make("span", {}, label), box), box];
}

function checkbox(label, checked, changed) {
  const box = make("input", { type: "checkbox", checked });
  box.addEventListener("change", changed);
  return [make("label", { class: "check" }, box, label), box];
}

function slider(label, most, chosen, changed) {
  const box = make("input", { type: "range", min: "0", max: String(most), step: "1" });
  box.value = String(chosen);
  box.addEventListener("input", changed);
  return [make("label", {}, make("span", {}, label), box), box];
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const short = (value) => (value == null ? "–" : Number(value.toPrecision(3)).toString());

// A drawing in a place of its own, as wide as there is room.
function show(place, words, drawn) {
  for (const part of drawn.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", words);
  place.replaceChildren(drawn);
}

// ---- Two networks: the path between them, and the permutation of each factor --------------------

function pair(root, data) {
  const names = data.networks.map((name, k) => `${name}, ${(100 * data.accuracies[k]).toFixed(1)} % right`);
  const measures = [["loss", "mean test loss", data.losses], ["errors", "share of wrong answers", data.errors]];
  const middle = (data.points.length - 1) / 2;
  const [firstLabel, first] = select("From", names, 0, () => keepApart(first, second));
  const [secondLabel, second] = select("To", names, 1, () => keepApart(second, first));
  const [measureLabel, measure] = select("Measured by", measures.map((m) => m[1]), 0, draw);
  const [pointLabel, point] = slider("Point of the path", data.points.length - 1, middle, draw);
  const boxes = data.factors.map((name, k) =>
    checkbox(`${name} (${data.permutations[0][k].length} units)`, true, draw));
  const moves = make("fieldset", {}, make("legend", {}, "Re-base these layers of the second network"),
    ...boxes.map((pair) => pair[0]));
  const said = make("p", { class: "said", "aria-live": "polite" });
  const path = make("div", { class: "plot" });
  const matrices = data.factors.map(() => make("div", { class: "plot" }));
  root.append(
    make("div", { class: "controls" }, firstLabel, secondLabel, measureLabel, pointLabel),
    moves, said,
    make("div", { class: "plots" }, make("div", { class: "across" }, path), ...matrices));

  function keepApart(changed, other) {
    if (changed.value === other.value) other.value = String((Number(other.value) + 1) % names.length);
    draw();
  }

  // The same pair the other way round has the path reversed, and the inverse permutations.
  function picked() {
    const [i, j] = [Number(first.value), Number(second.value)];
    const back = i > j;
    const row = data.pairs.findIndex(([a, b]) => a === Math.min(i, j) && b === Math.max(i, j));
    const turn = (values) => (back ? [...values].reverse() : values);
    const tables = data.permutations[row].map((table) => (back ? inverse(table) : table));
    const alike = data.alike[row].map((matrix) => (back ? d3.transpose(matrix) : matrix));
    return { i, j, row, turn, tables, alike };
  }

  function draw() {
    const pair = picked();
    const moved = boxes.map(([, box]) => box.checked);
    const choice = moved.reduce((sum, on, k) => sum + (on ? 2 ** k : 0), 0);
    const [, label, all] = measures[Number(measure.value)];
    const lines = [
      ["as trained", pair.turn(all[pair.row][0])],
      ["all layers re-based", pair.turn(all[pair.row].at(-1))],
      ["as picked", pair.turn(all[pair.row][choice])],
    ];
    const k = Number(point.value);
    const t = data.points[k];
    point.setAttribute("aria-valuetext", `t = ${short(t)}`);
    const words = `From ${data.networks[pair.i]} to ${data.networks[pair.j]} at t = ${short(t)}, ${label}: ` +
      lines.map(([name, values]) => `${short(values[k])} ${name}`).join(", ") + ".";
    said.textContent = words;
    drawPath(path, lines, t, label, words);
    matrices.forEach((place, f) => drawMatrix(place, pair, f, moved[f]));
  }

  function drawPath(place, lines, t, label, words) {
    const rows = lines.flatMap(([name, values]) => values.map((y, k) => ({ name, y, t: data.points[k] })));
    const tones = [colour("soft"), colour("warm"), colour("accent")];
    show(place, words, Plot.plot({
      width: Math.max(260, place.clientWidth), height: 308, marginLeft: 48, marginBottom: 44,
      style: { background: "none", fontSize: "12px" },
      x: { label: "t, from the first network to the second" }, y: { label, zero: true, grid: true, nice: true },
      color: { domain: lines.map((line) => line[0]), range: tones },
      marks: [
        Plot.ruleX([t], { stroke: colour("soft"), strokeDasharray: "3 3" }),
        Plot.lineY(rows, { x: "t", y: "y", stroke: "name", z: "name",
          strokeWidth: (row) => (row.name === "as picked" ? 3 : 1.5) }),
        Plot.dot(rows.filter((row) => row.t === t), { x: "t", y: "y", fill: "name", r: 4 }),
        Plot.dot(rows.filter((row) => row.name === "as picked"), { x: "t", y: "y", fill: "name", r: 2.5 }),
      ],
    }));
    place.append(legend(lines.map(([name], k) => [name, tones[k]])));
  }

  function drawMatrix(place, pair, f, moved) {
    const table = pair.tables[f];
    const size = table.length;
    const order = moved ? table : d3.range(size);
    const alike = pair.alike[f];
    const rows = d3.cross(d3.range(size), d3.range(size), (y, x) => ({ y, x, r: alike[y][order[x]] }));
    const diagonal = d3.mean(d3.range(size), (k) => alike[k][order[k]]);
    const away = d3.count(table, (to, k) => (to === k ? NaN : 1));
    const words = `${data.factors[f]}, ${moved ? "re-based" : "as trained"}: units in the same place ` +
      `correlate ${short(diagonal)} on average. ` +
      (moved ? `${away} of ${size} units moved, by ${size - cycles(table)} transpositions.` : "");
    const width = Math.min(340, Math.max(220, place.clientWidth));
    show(place, words, Plot.plot({
      width, height: width, marginLeft: 48, marginBottom: 44, padding: 0,
      style: { background: "none", fontSize: "12px" },
      x: { label: "unit of the second network", tickFormat: (x) => String(order[x] + 1), type: "band",
        ticks: d3.range(0, size, Math.ceil(size / 8)) },
      y: { label: "unit of the first", tickFormat: (y) => String(y + 1), type: "band",
        ticks: d3.range(0, size, Math.ceil(size / 8)) },
      color: { domain: [-1, 0, 1], range: [colour("warm"), colour("paper"), colour("accent")], type: "linear" },
      marks: [
        Plot.cell(rows, { x: "x", y: "y", fill: "r", inset: 0.3, title: (d) =>
          `unit ${d.y + 1} and unit ${order[d.x] + 1}: ${short(d.r)}` }),
        Plot.cell(d3.range(size), { x: (k) => k, y: (k) => k, stroke: colour("ink"), strokeOpacity: 0.5, inset: 0.3 }),
      ],
    }));
    place.prepend(make("h4", {}, `${data.factors[f]}, ${moved ? "re-based" : "as trained"}`));
    place.append(make("p", { class: "note" }, words));
  }

  return draw;
}

// ---- One prior precision: the error bars it gives, and its evidence ------------------------------

function evidence(root, data) {
  const fixed = Object.keys(data).filter((name) => Number(name.slice(4)) > 0)
    .map((name) => ({ precision: Number(name.slice(4)), deviation: data[name], word: "" }));
  const choices = [
    ...fixed,
    { precision: data.chosen_tangent, deviation: data.std_tangent, word: ", the choice at θ*" },
    { precision: data.chosen_network, deviation: data.std_network, word: ", the choice at θ~" },
  ].sort((a, b) => a.precision - b.precision);
  const nearest = choices.findIndex((choice) => choice.word.endsWith("θ*"));
  const [label, slide] = slider("Prior precision", choices.length - 1, nearest, draw);
  const said = make("p", { class: "said", "aria-live": "polite" });
  const bars = make("div", { class: "plot" });
  const curve = make("div", { class: "plot" });
  root.append(make("div", { class: "controls" }, label), said,
    make("div", { class: "plots" }, bars, curve));
  const reach = 3 * d3.max(data.seen_y, Math.abs);

  function at(curve, precision) {
    const place = d3.leastIndex(data.grid, (value) => Math.abs(Math.log(value / precision)));
    return curve[place];
  }

  function draw() {
    const { precision, deviation, word } = choices[Number(slide.value)];
    slide.setAttribute("aria-valuetext", `precision ${short(precision)}${word}`);
    const words = `Prior precision ${short(precision)}${word}: mean standard deviation ` +
      `${short(d3.mean(deviation))}; log evidence ${short(at(data.evidence_tangent, precision))} at θ*, ` +
      `${short(at(data.evidence_network, precision))} at θ~. The largest evidence is at precision ` +
      `${short(data.chosen_tangent)} at θ*, and at ${short(data.chosen_network)} at θ~.`;
    said.textContent = words;
    const rows = data.places.map((x, k) => ({ x, y: data.mean[k], s: 2 * deviation[k] }));
    const seen = data.seen_x.map((x, k) => ({ x, y: data.seen_y[k] }));
    show(bars, words, Plot.plot({
      width: Math.max(240, bars.clientWidth), height: 308, marginLeft: 40, marginBottom: 44, clip: true,
      style: { background: "none", fontSize: "12px" },
      x: { label: "x" }, y: { label: "prediction, two standard deviations", domain: [-reach, reach] },
      marks: [
        Plot.areaY(rows, { x: "x", y1: (row) => row.y - row.s, y2: (row) => row.y + row.s,
          fill: colour("accent"), fillOpacity: 0.2 }),
        Plot.lineY(rows, { x: "x", y: "y", stroke: colour("accent"), strokeWidth: 2 }),
        Plot.dot(seen, { x: "x", y: "y", fill: colour("warm"), r: 2.5 }),
      ],
    }));
    const lines = [["at θ*", data.evidence_tangent, colour("accent")], ["at θ~", data.evidence_network, colour("warm")]];
    const best = d3.max(lines, (line) => d3.max(line[1]));
    show(curve, words, Plot.plot({
      width: Math.max(240, curve.clientWidth), height: 308, marginLeft: 48, marginBottom: 44, clip: true,
      style: { background: "none", fontSize: "12px" },
      x: { label: "prior precision", type: "log", tickFormat: "~g", ticks: 4 },
      y: { label: "log evidence", domain: [best - 300, best + 20], grid: true },
      marks: [
        Plot.ruleX([precision], { stroke: colour("soft"), strokeDasharray: "3 3" }),
        ...lines.map(([, values, tone]) => Plot.lineY(values, { x: data.grid, y: (v) => v, stroke: tone, strokeWidth: 2 })),
      ],
    }));
    curve.append(legend(lines.map(([name, , tone]) => [name, tone])));
  }

  return draw;
}

// ---- Weights left out one after another, in two orders -------------------------------------------

function prune(root, data) {
  const shares = data.kept.map((share, k) => ({ share, k })).sort((a, b) => a.share - b.share);
  const middle = shares.findIndex((each) => each.share >= 0.5);
  const [label, slide] = slider("Weights kept", shares.length - 1, middle, draw);
  const [spreadLabel, spread] = select("Standard deviations of", ["the aligned Gaussian", "the Gaussian as sampled"], 0, draw);
  const said = make("p", { class: "said", "aria-live": "polite" });
  const curve = make("div", { class: "plot" });
  const bars = make("div", { class: "plot" });
  root.append(make("div", { class: "controls" }, label, spreadLabel), said,
    make("div", { class: "plots" }, curve, bars));

  function draw() {
    const { share, k } = shares[Number(slide.value)];
    slide.setAttribute("aria-valuetext", `${short(100 * share)} % kept`);
    const lines = [
      ["largest |mean|/sigma", data.pruned_hmc_signal, colour("accent")],
      ["lowest sigma", data.pruned_hmc_sigma, colour("warm")],
    ];
    const sigmas = Number(spread.value) ? data.sigma_direct : data.sigma_aligned;
    const cut = d3.quantile(sigmas, share);
    const words = `${short(100 * share)} % of the weights kept: ` +
      lines.map(([name, values]) => `${short(100 * values[k])} % right by ${name}`).join(", ") +
      `. By the lowest sigma, those up to ${short(cut)} stay.`;
    said.textContent = words;
    const rows = lines.flatMap(([name, values]) => shares.map((each) => ({ name, share: each.share, y: values[each.k] })));
    const tones = lines.map((line) => line[2]);
    show(curve, words, Plot.plot({
      width: Math.max(240, curve.clientWidth), height: 308, marginLeft: 44, marginBottom: 44,
      style: { background: "none", fontSize: "12px" },
      x: { label: "share of the weights kept" }, y: { label: "test accuracy", domain: [0, 1], grid: true },
      color: { domain: lines.map((line) => line[0]), range: tones },
      marks: [
        Plot.ruleX([share], { stroke: colour("soft"), strokeDasharray: "3 3" }),
        Plot.lineY(rows, { x: "share", y: "y", stroke: "name", strokeWidth: 2 }),
        Plot.dot(rows.filter((row) => row.share === share), { x: "share", y: "y", fill: "name", r: 4 }),
      ],
    }));
    curve.append(legend(lines.map(([name, , tone]) => [name, tone])));
    show(bars, words, Plot.plot({
      width: Math.max(240, bars.clientWidth), height: 308, marginLeft: 44, marginBottom: 44,
      style: { background: "none", fontSize: "12px" },
      x: { label: "standard deviation of a weight" }, y: { label: "weights shown", grid: true },
      marks: [
        Plot.rectY(sigmas, Plot.binX({ y: "count" }, { x: (v) => v, thresholds: 40,
          fill: (v) => (v <= cut ? "kept" : "gone") })),
        Plot.ruleX([cut], { stroke: colour("ink"), strokeDasharray: "3 3" }),
      ],
      color: { domain: ["kept", "gone"], range: [colour("accent"), colour("soft")] },
    }));
  }

  return draw;
}

function inverse(table) {
  const found = new Array(table.length);
  table.forEach((from, to) => { found[from] = to; });
  return found;
}

function cycles(table) {
  const seen = new Set();
  let count = 0;
  for (let k = 0; k < table.length; k += 1) {
    if (seen.has(k)) continue;
    count += 1;
    for (let at = k; !seen.has(at); at = table[at]) seen.add(at);
  }
  return count;
}

function legend(entries) {
  return make("ul", { class: "legend" }, ...entries.map(([name, tone]) => {
    const mark = make("span", { class: "mark", "aria-hidden": "true" });
    mark.style.background = tone;
    return make("li", {}, mark, name);
  }));
}

// ---- Start -----------------------------------------------------------------------------------------

for (const root of document.querySelectorAll("[data-explorer]")) {
  const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
  root.querySelector(".plain")?.remove();
  const draw = KINDS[root.dataset.explorer](root, data);
  let width = -1;
  new ResizeObserver(() => {
    if (root.clientWidth !== width) {
      width = root.clientWidth;
      requestAnimationFrame(draw);
    }
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", () => requestAnimationFrame(draw));
}
})();
