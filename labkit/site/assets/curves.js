// The site's curves: the same panes as in the panels, from numbers that stand in the page.

// A colour of the theme, var(--name), as it is now.
function now(color) {
  const name = /^var\((.*)\)$/.exec(color);
  return name ? getComputedStyle(document.documentElement).getPropertyValue(name[1]).trim() : color;
}

// A pane whose lines hold their numbers, as what the chart wants: one buffer, and places in it.
function asModel(panes, legend) {
  const numbers = [], lengths = [];
  const keep = (values) => {
    lengths.push(values.length);
    for (const value of values) numbers.push(value === null ? NaN : value);
    return lengths.length - 1;
  };
  const specs = panes.map((pane) => ({
    ...pane,
    legend: [],
    lines: (pane.lines || []).map((line) => ({ ...line, color: now(line.color), x: keep(line.x), y: keep(line.y) })),
    areas: (pane.areas || []).map((area) => ({ ...area, x: keep(area.x), y: keep(area.y) })),
  }));
  const columns = panes.length === 4 ? 2 : Math.min(panes.length, 3); // no pane alone in a row
  const entries = (legend || []).map((entry) => ({ ...entry, color: now(entry.color) }));
  const figure = { number: 1, columns, height: 225, panes: specs, lengths, legend: entries };
  const points = new DataView(new Float32Array(numbers).buffer);
  return { get: (name) => ({ figure, points })[name], on() {}, off() {}, send() {} };
}

// Draw panes in an element, in place of what was there.
window.labkitCurves = (place, panes, legend) => {
  if (place.labkitRemove) place.labkitRemove();
  place.replaceChildren();
  place.labkitRemove = labkitChart.render({ model: asModel(panes, legend), el: place });
  place.labkitAgain = () => window.labkitCurves(place, panes, legend);
  place.classList.add("labkit-drawn");
};
new MutationObserver(() => document.querySelectorAll(".labkit-drawn").forEach((place) => place.labkitAgain())).observe(
  document.documentElement,
  { attributes: true, attributeFilter: ["class"] }, // the theme
);

// Training and validation loss as lines, {name: {x, y}}, and their legend.
const LOSSES = { loss: ["training loss", "var(--training)", 2], val_loss: ["validation loss", "var(--validation)", 1.6] };
window.labkitLosses = (curves) => {
  const shown = Object.entries(LOSSES).filter(([name]) => curves[name]);
  const lines = shown.map(([name, [label, color, width]]) => ({ label, color, dash: "-", width, ...curves[name] }));
  return { lines, legend: lines.map(({ label, color, dash }) => ({ label, color, dash })) };
};

for (const place of document.querySelectorAll("[data-charts]")) {
  const panes = JSON.parse(document.getElementById(place.dataset.charts).textContent);
  const figures = [...place.querySelectorAll("figure")];
  const pictures = figures.filter((figure) => figure.querySelector("img"));
  const drawn = document.createElement("div");
  place.before(drawn);
  window.labkitCurves(drawn, panes);
  for (const figure of figures) if (!pictures.includes(figure)) figure.remove();
  if (!pictures.length) place.remove();
}
