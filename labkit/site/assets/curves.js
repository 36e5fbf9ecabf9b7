// The site's curves: the same panes as in the panels, from numbers that stand in the page.

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
    lines: (pane.lines || []).map((line) => ({ ...line, x: keep(line.x), y: keep(line.y) })),
    areas: (pane.areas || []).map((area) => ({ ...area, x: keep(area.x), y: keep(area.y) })),
  }));
  const figure = { number: 1, columns: Math.min(panes.length, 3), height: 225, panes: specs, lengths, legend: legend || [] };
  const points = new DataView(new Float32Array(numbers).buffer);
  return { get: (name) => ({ figure, points })[name], on() {}, off() {}, send() {} };
}

// Draw panes in an element, in place of what was there.
window.labkitCurves = (place, panes, legend) => {
  if (place.labkitRemove) place.labkitRemove();
  place.replaceChildren();
  place.labkitRemove = labkitChart.render({ model: asModel(panes, legend), el: place });
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
