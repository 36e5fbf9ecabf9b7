// Panes of lines and bars on canvas that answer to the pointer and to the keyboard.
//
// Python sends what is drawn (`figure`, as JSON) and its numbers (`points`, 32-bit floats). While a run trains, messages
// append points to the live line of each pane. This module imports nothing and evaluates nothing, so that it runs under
// the content rules of JupyterLab, Notebook 7 and Voila.

const MARGIN = { left: 58, right: 14, top: 8, bottom: 36 }; // pixels around the axes
const CLICK = 5; // pixels: the pointer of a click moves less than that
const FLAT = 14; // pixels: a drag that is lower than that zooms along one axis only
const POINT = 1.25; // pixels in a point of Python's line widths
const DASHES = { "--": [5, 3], ":": [1.5, 3], "-.": [6, 3, 1.5, 3] };
const MOVES = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
const KEYS = "Arrow keys, Home and End read values; plus and minus zoom; Escape resets.";

export default {
  render({ model, el }) {
    const chart = new Chart(model, el);
    return () => chart.remove();
  },
};

// --- the chart: legend, panes, and what they share ---------------------------------------------------

class Chart {
  constructor(model, el) {
    this.model = model;
    this.panes = [];
    this.root = element("div", "labkit-chart", el);
    this.legend = element("div", "labkit-chart-legend", this.root);
    this.grid = element("div", "labkit-chart-panes", this.root);
    this.aloud = element("div", "labkit-chart-aloud", this.root);
    this.aloud.setAttribute("aria-live", "polite");
    this.onFigure = () => this.show();
    this.onMessage = (message, buffers) => this.grow(message, buffers);
    model.on("change:figure", this.onFigure);
    model.on("msg:custom", this.onMessage);
    this.observe();
    this.show();
    if (this.panes.some((pane) => pane.spec.live)) this.ask(); // a run trains already
  }

  // Draw again when the size or the theme changes.
  observe() {
    const again = () => this.panes.forEach((pane) => pane.redraw());
    this.sizes = new ResizeObserver(again);
    this.sizes.observe(this.root);
    this.themes = new MutationObserver(again);
    for (const node of [document.documentElement, document.body])
      this.themes.observe(node, { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-name", "data-jp-theme-light"] });
    this.dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", again);
    this.again = again;
  }

  remove() {
    this.model.off("change:figure", this.onFigure);
    this.model.off("msg:custom", this.onMessage);
    this.sizes.disconnect();
    this.themes.disconnect();
    this.dark.removeEventListener("change", this.again);
  }

  show() {
    this.figure = this.model.get("figure");
    const specs = this.figure.panes || [];
    const arrays = split(this.model.get("points"), this.figure.lengths || []);
    this.grid.style.setProperty("--labkit-columns", this.figure.columns || 1);
    this.grid.style.setProperty("--labkit-height", `${this.figure.height || 200}px`);
    while (this.panes.length > specs.length) this.panes.pop().figure.remove();
    while (this.panes.length < specs.length) this.panes.push(new Pane(this));
    this.panes.forEach((pane, number) => pane.show(specs[number], arrays));
    fillLegend(this.legend, this.figure.legend || []);
  }

  // New points of the live lines; where some are missing, because this view was opened later, ask for all of them.
  grow(message, buffers) {
    if (message.figure !== this.figure.number) return;
    const lengths = message.parts.flatMap((part) => [part.count, part.count]);
    const arrays = split(buffers[0], lengths);
    const complete = message.parts.map((part, number) =>
      this.panes[part.pane].append(part.start, arrays[2 * number], arrays[2 * number + 1])
    );
    if (!complete.every(Boolean)) this.ask();
  }

  // Ask for all points of the live lines.
  ask() {
    this.model.send({ resend: this.figure.number });
  }

  // The cursor of one pane is shown in all that have the same x axis.
  point(source, x) {
    for (const pane of this.panes) {
      const shared = pane === source || (pane.spec.x && source.spec.x && pane.spec.x.label === source.spec.x.label);
      pane.cursor = shared ? x : null;
      pane.redraw();
    }
  }
}

// --- one pane ----------------------------------------------------------------------------------------

class Pane {
  constructor(chart) {
    this.chart = chart;
    this.spec = { lines: [], shapes: [], notes: [] };
    this.live = { x: [], y: [] };
    this.zoom = null; // limits that the user chose
    this.cursor = null; // x of the cursor, in the units of the axis
    this.drag = null; // [x, y, x, y] in pixels while the pointer is down
    this.figure = element("figure", "labkit-chart-pane", chart.grid);
    const head = element("figcaption", "labkit-chart-head", this.figure);
    this.title = element("span", "labkit-chart-title", head);
    this.reset = element("button", "labkit-chart-reset", head);
    this.reset.type = "button";
    this.reset.textContent = "Reset zoom";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => this.resetZoom());
    this.legend = element("div", "labkit-chart-legend", this.figure);
    const place = element("div", "labkit-chart-place", this.figure);
    this.canvas = element("canvas", "labkit-chart-canvas", place);
    this.canvas.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes the arrow keys
    this.picture = element("img", "labkit-chart-picture", place);
    this.tip = element("div", "labkit-chart-tip", place);
    this.tip.hidden = true;
    this.listen();
  }

  show(spec, arrays) {
    if (!samePlot(this.spec, spec)) {
      this.zoom = this.drag = null; // limits of another plot mean nothing here
      this.reset.hidden = true;
    }
    this.cursor = null;
    this.tip.hidden = true;
    this.spec = spec;
    this.lines = (spec.lines || []).map((line) => ({ ...line, x: arrays[line.x], y: arrays[line.y] }));
    this.areas = (spec.areas || []).map((area) => ({ ...area, x: arrays[area.x], y: arrays[area.y] }));
    this.live = { ...(spec.live || {}), x: [], y: [] };
    this.places = null;
    this.title.textContent = spec.title || "";
    this.picture.hidden = !spec.picture;
    this.canvas.hidden = Boolean(spec.picture);
    if (spec.picture) {
      this.picture.src = spec.picture;
      this.picture.alt = spec.alt;
    }
    fillLegend(this.legend, spec.legend || []);
    this.setRole();
    this.named = false;
    this.redraw();
  }

  // A chart with axes takes keys, which a screen reader passes on to an application only; words are an image.
  setRole() {
    const { canvas } = this, keys = Boolean(this.spec.x);
    canvas.setAttribute("role", keys ? "application" : "img");
    canvas.tabIndex = keys ? 0 : -1;
    if (keys) canvas.setAttribute("aria-roledescription", "chart");
    else canvas.removeAttribute("aria-roledescription");
  }

  append(start, x, y) {
    if (start > this.live.x.length) return false;
    this.live.x = [...this.live.x.slice(0, start), ...x];
    this.live.y = [...this.live.y.slice(0, start), ...y];
    this.places = null;
    this.redraw();
    return true;
  }

  get everyLine() {
    return this.live.x.length ? [...this.lines, this.live] : this.lines;
  }

  // Lines whose points are values of both axes, not marks at a fraction of one.
  get readable() {
    return this.everyLine.filter((line) => !line.xin && !line.yin && line.label);
  }

  // --- limits and zoom ---

  get limits() {
    if (this.zoom) return this.zoom;
    const { x, y } = this.spec;
    const values = y.fixed ? [] : Array.from(this.live.y).filter((value) => usable(value, y.log));
    if (!values.length) return { x: x.limits, y: y.limits };
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    const room = padded([low, high], y.log);
    return {
      x: x.limits,
      y: [low < y.limits[0] ? room[0] : y.limits[0], high > y.limits[1] ? room[1] : y.limits[1]],
    };
  }

  resetZoom() {
    this.zoom = null;
    this.reset.hidden = true;
    this.redraw();
  }

  setZoom(x, y) {
    const zoom = { x, y: y || this.fit(x) };
    if (Object.values(zoom).some(tooNarrow)) return;
    this.zoom = zoom;
    this.reset.hidden = false;
    this.redraw();
  }

  // The y limits of what is between two values of x.
  fit([from, to]) {
    const { y } = this.spec;
    if (y.fixed) return y.limits;
    let low = Infinity, high = -Infinity;
    for (const line of this.everyLine) {
      if (line.xin || line.yin) continue;
      for (let i = 0; i < line.x.length; i++)
        if (line.x[i] >= from && line.x[i] <= to && usable(line.y[i], y.log)) {
          low = Math.min(low, line.y[i]);
          high = Math.max(high, line.y[i]);
        }
    }
    return low <= high ? padded([low, high], y.log) : this.limits.y;
  }

  zoomTo([left, top, right, bottom]) {
    const [x0, x1] = [left, right].sort(ascending), [y0, y1] = [top, bottom].sort(ascending);
    const wide = x1 - x0 >= FLAT, high = y1 - y0 >= FLAT;
    if (!wide && !high) return;
    const x = wide ? [this.across.value(x0), this.across.value(x1)] : this.limits.x;
    this.setZoom(x, high ? [this.up.value(y1), this.up.value(y0)] : null);
  }

  // Half or twice the width, around the cursor.
  zoomAround(factor) {
    const { left, right } = this.box;
    const centre = this.cursor === null ? (left + right) / 2 : this.across.pixel(this.cursor);
    const ends = [centre + factor * (left - centre), centre + factor * (right - centre)];
    const home = this.spec.x.limits;
    const x = [Math.max(home[0], this.across.value(ends[0])), Math.min(home[1], this.across.value(ends[1]))];
    if (x[0] === home[0] && x[1] === home[1]) this.resetZoom();
    else this.setZoom(x, null);
  }

  // --- pointer and keys ---

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    canvas.addEventListener("pointerup", (event) => this.released(event));
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch" && !this.drag) this.leave(); // a finger that is lifted leaves the tip to read
    });
    canvas.addEventListener("pointercancel", () => {
      this.drag = null;
      this.leave();
    });
    canvas.addEventListener("dblclick", () => this.resetZoom());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.leave());
  }

  moved(event) {
    if (!this.across || !this.spec.x) return; // nothing was drawn yet, or there are no axes
    const [x, y] = this.inside(event);
    if (this.drag) this.drag.splice(2, 2, x, y);
    this.pointAt(this.nearest(this.across.value(x)));
  }

  pressed(event) {
    if (event.pointerType === "touch" || event.button !== 0 || !this.across || !this.spec.x) return; // a finger scrolls and points
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = [...this.inside(event), ...this.inside(event)];
  }

  released(event) {
    if (!this.drag) return this.moved(event);
    const [x0, y0, x1, y1] = this.drag;
    this.drag = null;
    if (Math.max(Math.abs(x1 - x0), Math.abs(y1 - y0)) > CLICK) this.zoomTo([x0, y0, x1, y1]);
    this.redraw();
  }

  key(event) {
    const { key } = event;
    if (event.altKey || event.ctrlKey || event.metaKey || !this.across || !this.spec.x) return;
    if (key in MOVES) this.step(MOVES[key] * (event.shiftKey ? 10 : 1));
    else if (key === "+" || key === "=") this.zoomAround(0.5);
    else if (key === "-") this.zoomAround(2);
    else if (key === "Escape" || key === "0") this.resetZoom();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Move the cursor by this many points, and say what is there.
  step(count) {
    const [from, to] = this.limits.x;
    const places = this.xs.filter((x) => x >= from && x <= to);
    if (!places.length) return;
    const now = this.cursor === null ? (count > 0 ? -1 : places.length) : nearestIndex(places, this.cursor);
    this.pointAt(places[Math.min(places.length - 1, Math.max(0, now + count))]);
    this.chart.aloud.textContent = `${this.headline(this.cursor)}: ${this.readings(this.cursor).map((one) => `${one.label} ${one.words}`).join(", ")}`;
  }

  leave() {
    this.chart.point(this, null);
    this.tip.hidden = true;
  }

  pointAt(x) {
    if (x === null) return;
    this.chart.point(this, x);
    this.showTip(x);
  }

  inside(event) {
    const place = this.canvas.getBoundingClientRect();
    const { left, right, top, bottom } = this.box;
    const x = event.clientX - place.left, y = event.clientY - place.top;
    return [Math.min(right, Math.max(left, x)), Math.min(bottom, Math.max(top, y))];
  }

  // --- reading values ---

  // Every x at which there is something to read, in order.
  get xs() {
    if (!this.places) {
      const all = this.readable.flatMap((line) => [...line.x]);
      for (const bar of this.spec.shapes || []) if (bar.label) all.push(Math.round(bar.x + bar.width / 2));
      this.places = [...new Set(all.filter(Number.isFinite))].sort(ascending);
    }
    return this.places;
  }

  nearest(x) {
    const { xs } = this;
    return xs.length ? xs[nearestIndex(xs, x, this.spec.x.log)] : null;
  }

  headline(x) {
    return `${this.spec.x.label.split(",")[0]} ${short(x)}`;
  }

  // What every line and bar has at x: its nearest point, and where that is if it is not there.
  readings(x) {
    const found = [];
    const add = (thing, at, value) => {
      const label = thing.label.replace(/^_/, "");
      found.push({ label, at, words: this.words(value), color: thing.color, dash: thing.dash, far: at !== x });
    };
    for (const line of this.readable) {
      const index = nearestIndex(line.x, x);
      const reach = Math.abs(this.across.pixel(line.x[index]) - this.across.pixel(x));
      if (line.x.length > 1 || reach < FLAT) add(line, line.x[index], line.y[index]);
    }
    for (const bar of this.spec.shapes || [])
      if (bar.label && Math.round(bar.x + bar.width / 2) === x) add(bar, x, bar.height === null ? null : bar.y + bar.height);
    return found;
  }

  words(value) {
    if (value === null) return "0 or not finite";
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "infinite" : "minus infinite";
    return this.spec.y.percent ? `${(100 * value).toFixed(1)} %` : short(value);
  }

  showTip(x) {
    const { tip } = this;
    const rows = this.readings(x);
    tip.replaceChildren();
    element("div", "labkit-chart-step", tip).textContent = this.headline(x);
    for (const one of rows) {
      const row = element("div", "labkit-chart-row", tip);
      swatch(row, one);
      element("span", "", row).textContent = one.label;
      element("b", "", row).textContent = one.words;
      element("small", "", row).textContent = one.far ? `at ${short(one.at)}` : "";
    }
    tip.style.background = this.paper;
    tip.hidden = !rows.length;
    // Beside the cursor where there is room, and else over it: what leaves the chart is cut off.
    const pixel = this.across.pixel(x), room = this.canvas.clientWidth - tip.offsetWidth;
    const beside = pixel > this.canvas.clientWidth / 2 ? pixel - 12 - tip.offsetWidth : pixel + 12;
    tip.style.left = `${Math.max(0, Math.min(beside, room))}px`;
  }

  // What a screen reader says of the pane: its title, and from where to where each line goes. The live line is named
  // without values, so that the name does not change at every frame.
  name() {
    const lines = this.readable
      .filter((line) => line !== this.live && !line.label.startsWith("_") && line.y.length)
      .map((line) => `${line.label} from ${this.words(line.y[0])} to ${this.words(line.y[line.y.length - 1])}`);
    if (this.spec.live) lines.push(this.spec.live.label);
    const bars = [...new Set((this.spec.shapes || []).map((bar) => bar.label).filter(Boolean))].map((label) => `bars of ${label}`);
    const notes = (this.spec.notes || []).map((note) => note.text);
    const parts = [this.spec.title, [...lines, ...bars, ...notes].join("; "), this.spec.x ? KEYS : ""];
    this.canvas.setAttribute("aria-label", parts.filter(Boolean).join(". "));
    this.named = true;
  }

  // --- drawing ---

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const { canvas, spec } = this;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height || spec.picture) return;
    const dense = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
    const pen = (this.pen = canvas.getContext("2d"));
    pen.scale(dense, dense);
    const style = getComputedStyle(this.chart.root);
    this.ink = style.color;
    this.paper = this.tip.style.background = background(this.chart.root); // the theme may change under the pointer
    this.font = style.fontFamily;
    const { left, right, top, bottom } = spec.x ? MARGIN : { left: 12, right: 12, top: 12, bottom: 12 };
    this.box = { left, right: width - right, top, bottom: height - bottom };
    if (spec.x) this.drawAxesAndData();
    for (const note of spec.notes || []) this.drawNote(note);
    if (!this.named) this.name();
    this.tell("points", this.everyLine.reduce((sum, line) => sum + line.x.length, 0));
  }

  drawAxesAndData() {
    const { left, right, top, bottom } = this.box;
    const limits = this.limits;
    this.across = scale(limits.x, this.spec.x.log, left, right);
    this.up = scale(limits.y, this.spec.y.log, bottom, top);
    this.drawAxes(limits);
    this.clipped(() => {
      for (const area of this.areas) this.drawArea(area);
      for (const shape of this.spec.shapes || []) this.drawShape(shape);
      for (const line of this.everyLine) this.drawLine(line);
      this.drawCursor();
    });
    this.tell("limits", [...limits.x, ...limits.y].map((value) => Number(value.toPrecision(6))).join(" "));
  }

  // What is on the canvas, as attributes that scripts and tests can watch; they change only if it does.
  tell(name, value) {
    if (this.canvas.dataset[name] !== String(value)) this.canvas.dataset[name] = value;
  }

  clipped(draw) {
    const { left, right, top, bottom } = this.box;
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(left, top - 1, right - left + 1, bottom - top + 2);
    this.pen.clip();
    draw();
    this.pen.restore();
  }

  drawAxes(limits) {
    const { pen, box, spec } = this;
    pen.fillStyle = pen.strokeStyle = this.ink;
    pen.lineWidth = 1;
    pen.font = `11px ${this.font}`;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [value, words] of ticks(limits.y, spec.y, (box.bottom - box.top) / 34)) {
      const y = Math.round(this.up.pixel(value)) + 0.5;
      this.stroke([[box.left, y], [box.right, y]], 0.14);
      pen.fillText(words, box.left - 6, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const [value, words] of ticks(limits.x, spec.x, (box.right - box.left) / 62)) {
      const x = Math.round(this.across.pixel(value)) + 0.5;
      this.stroke([[x, box.bottom], [x, box.bottom + 4]], 0.7);
      pen.fillText(words, x, box.bottom + 6);
    }
    this.stroke([[box.left + 0.5, box.top], [box.left + 0.5, box.bottom + 0.5], [box.right, box.bottom + 0.5]], 0.7);
    this.drawLabels();
  }

  drawLabels() {
    const { pen, box, spec } = this;
    pen.globalAlpha = 0.85;
    pen.textBaseline = "alphabetic";
    pen.fillText(spec.x.label, (box.left + box.right) / 2, box.bottom + MARGIN.bottom - 4);
    pen.save();
    const middle = (box.top + box.bottom) / 2;
    pen.translate(0, middle);
    pen.rotate(-Math.PI / 2);
    // Words that are longer than the chart is high are drawn narrower.
    spec.y.label.split("\n").forEach((words, number) => pen.fillText(words, 0, 11 + 12 * number, 2 * middle));
    pen.restore();
    pen.globalAlpha = 1;
  }

  stroke(points, alpha) {
    const { pen } = this;
    pen.globalAlpha = alpha;
    pen.beginPath();
    points.forEach(([x, y], number) => (number ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.stroke();
    pen.globalAlpha = 1;
  }

  // Black and white mean ink and paper, whatever the theme.
  color(name) {
    if (name === "#000000") return this.ink;
    return name === "#ffffff" ? this.paper : name;
  }

  // A place in pixels: a value of the axis, or a fraction of it.
  px(x, fraction) {
    return fraction ? this.box.left + x * (this.box.right - this.box.left) : this.across.pixel(x);
  }

  py(y, fraction) {
    return fraction ? this.box.bottom - y * (this.box.bottom - this.box.top) : this.up.pixel(y);
  }

  drawLine(line) {
    const { pen } = this;
    pen.strokeStyle = pen.fillStyle = this.color(line.color);
    pen.globalAlpha = line.alpha ?? 1;
    pen.lineWidth = line.width * POINT;
    pen.lineJoin = "round";
    pen.setLineDash(DASHES[line.dash] || []);
    const points = [];
    for (let i = 0; i < line.x.length; i++) {
      const there = (line.xin || usable(line.x[i], this.spec.x.log)) && (line.yin || usable(line.y[i], this.spec.y.log));
      points.push(there ? [this.px(line.x[i], line.xin), this.py(line.y[i], line.yin)] : null);
    }
    if (line.dash) this.path(points);
    pen.setLineDash([]);
    if (line.marker) for (const point of points) if (point) this.drawMarker(line, ...point);
    pen.globalAlpha = 1;
  }

  // Through all points; a missing one is a gap.
  path(points) {
    const { pen } = this;
    let drawing = false;
    pen.beginPath();
    for (const point of points) {
      if (point && drawing) pen.lineTo(...point);
      else if (point) pen.moveTo(...point);
      drawing = Boolean(point);
    }
    pen.stroke();
  }

  drawMarker(line, x, y) {
    const { pen } = this, half = (line.size * POINT) / 2;
    pen.beginPath();
    if (line.marker === "X") {
      pen.lineWidth = 2.5;
      for (const side of [-1, 1]) {
        pen.moveTo(x - half, y - side * half);
        pen.lineTo(x + half, y + side * half);
      }
      pen.stroke();
      return;
    }
    if (line.marker === "^") {
      pen.moveTo(x, y - half);
      pen.lineTo(x + half, y + half);
      pen.lineTo(x - half, y + half);
      pen.closePath();
    } else pen.arc(x, y, half, 0, 2 * Math.PI);
    if (line.hollow) pen.stroke();
    else pen.fill();
  }

  drawArea(area) {
    const { pen } = this;
    pen.fillStyle = this.color(area.color);
    pen.globalAlpha = area.alpha;
    pen.beginPath();
    for (let i = 0; i < area.x.length; i++) {
      const y = usable(area.y[i], this.spec.y.log) ? this.up.pixel(area.y[i]) : this.box.bottom;
      pen.lineTo(this.across.pixel(area.x[i]), y);
    }
    pen.fill();
    pen.globalAlpha = 1;
  }

  drawShape(shape) {
    const { pen } = this;
    if (shape.height === null) return;
    const x = this.px(shape.x, shape.xin), y = this.py(shape.y + shape.height, shape.yin);
    const width = this.px(shape.x + shape.width, shape.xin) - x;
    const foot = !shape.yin && !usable(shape.y, this.spec.y.log) ? this.box.bottom : this.py(shape.y, shape.yin);
    if (!Number.isFinite(y)) return;
    pen.globalAlpha = shape.alpha ?? 1;
    pen.fillStyle = this.color(shape.color);
    pen.fillRect(x, y, width, foot - y);
    if (shape.hatch) this.hatch(x, y, width, foot - y);
    if (shape.edge) {
      pen.strokeStyle = this.color(shape.edge);
      pen.lineWidth = 1;
      pen.strokeRect(x, y, width, foot - y);
    }
    pen.globalAlpha = 1;
  }

  // Slanted lines, so that a bar is known without its colour.
  hatch(x, y, width, height) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, height);
    pen.clip();
    pen.strokeStyle = this.paper;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = x - height; at < x + width; at += 6) {
      pen.moveTo(at, y + height);
      pen.lineTo(at + height, y);
    }
    pen.stroke();
    pen.restore();
  }

  drawNote(note) {
    const { pen } = this;
    const x = this.px(note.x, note.xin) + note.dx, y = this.py(note.y, note.yin) - note.dy;
    if (!Number.isFinite(x) || !Number.isFinite(y)) return;
    pen.font = `${note.bold ? "bold " : ""}${note.size}px ${this.font}`;
    pen.textAlign = note.align;
    pen.textBaseline = note.base;
    const lines = note.text.split("\n");
    const widest = Math.max(...lines.map((words) => pen.measureText(words).width));
    const from = note.align === "right" ? x - widest : note.align === "center" ? x - widest / 2 : x;
    const height = 1.3 * note.size, more = height * (lines.length - 1); // of a line, and of those after the first
    const first = y - (note.base === "middle" ? more / 2 : note.base === "bottom" ? more : 0);
    const above = note.base === "top" ? 0 : note.base === "middle" ? note.size / 2 : note.size;
    pen.fillStyle = note.box ? this.color(note.box) : this.paper;
    pen.globalAlpha = note.box ? 1 : 0.75;
    pen.fillRect(from - 4, first - above - 3, widest + 8, height * lines.length + 4);
    pen.globalAlpha = 1;
    pen.fillStyle = note.color === "#ffffff" && note.box ? "#ffffff" : this.color(note.color);
    lines.forEach((words, number) => pen.fillText(words, x, first + height * number));
  }

  drawCursor() {
    const { pen, box } = this;
    pen.strokeStyle = pen.fillStyle = this.ink;
    pen.lineWidth = 1;
    if (this.cursor !== null) {
      const x = Math.round(this.across.pixel(this.cursor)) + 0.5;
      this.stroke([[x, box.top], [x, box.bottom]], 0.55);
    }
    if (this.drag) {
      const [x0, y0, x1, y1] = this.drag;
      const flat = Math.abs(y1 - y0) < FLAT, slim = Math.abs(x1 - x0) < FLAT;
      const [left, right] = slim && !flat ? [box.left, box.right] : [x0, x1];
      const [top, bottom] = flat ? [box.top, box.bottom] : [y0, y1];
      pen.globalAlpha = 0.15;
      pen.fillRect(left, top, right - left, bottom - top);
      pen.globalAlpha = 1;
    }
  }
}

// --- axes --------------------------------------------------------------------------------------------

// From values to pixels and back.
function scale([low, high], log, from, to) {
  const place = log ? Math.log10 : (value) => value;
  const back = log ? (value) => 10 ** value : (value) => value;
  const start = place(low), span = place(high) - start || 1;
  return {
    pixel: (value) => from + ((place(value) - start) / span) * (to - from),
    value: (pixel) => back(start + ((pixel - from) / (to - from)) * span),
  };
}

// [value, words] of about `most` ticks between two limits.
function ticks(limits, axis, most) {
  const [low, high] = limits;
  const decades = axis.log ? Math.log10(high / low) : 0;
  const values = axis.log && decades > 0.7 ? powers(limits, decades, most) : roundNumbers(limits, most, axis.whole);
  const near = Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low)); // digits that all values share
  const digits = Math.min(15, 2 + Math.max(2, Math.ceil(near)));
  const plain = axis.log ? 1e5 : 1e7; // the powers on a log axis are short as such, and leave room for its label
  return values.map((value) => [value, axis.percent ? `${short(100 * value, digits)} %` : short(value, digits, plain)]);
}

function roundNumbers([low, high], most, whole) {
  const rough = (high - low) / Math.max(2, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  if (whole) step = Math.max(1, Math.round(step));
  const found = [], first = Math.ceil(low / step);
  for (let count = 0; count <= 2 * most + 2 && (first + count) * step <= high + step / 1e6; count++)
    found.push((first + count) * step);
  return found;
}

// Powers of ten; 2 and 5 times each where there are few; not every one where there are many.
function powers([low, high], decades, most) {
  const factors = decades < 2.2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / Math.max(2, most)));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    if (power % every === 0)
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (value >= 0.999 * low && value <= 1.001 * high) found.push(value);
      }
  return found;
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

// 0.01, 1500 and 100400 as they are; 10⁻⁵ and 2.3×10³⁰ as powers of ten. Four digits, and seven from 10,000 to ten
// million, so that steps are exact; more where the ticks of a narrow range need them to differ.
function short(value, digits = 4, plain = 1e7) {
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < plain))
    return String(Number(value.toPrecision(Math.max(digits, size < 1e4 ? 4 : 7))));
  const [factor, power] = value.toExponential(digits - 1).split("e");
  const raised = [...power.replace("+", "")].map((digit) => RAISED[digit]).join("");
  return Number(factor) === 1 ? `10${raised}` : `${Number(factor)}×10${raised}`;
}

// A little more than from the lowest to the highest.
function padded([low, high], log) {
  if (log) {
    const room = Math.max(1.1, (high / low) ** 0.06);
    return [low / room, high * room];
  }
  const room = tooNarrow([low, high]) ? 0.1 * Math.abs(high) || 1 : 0.06 * (high - low);
  return [low - room, high + room];
}

// Whether two descriptions are of one plot, so that a zoom of the first holds for the second.
function samePlot(one, other) {
  const kind = ({ title, x, y }) => JSON.stringify([title, x && [x.label, x.log], y && [y.label, y.log]]);
  return kind(one) === kind(other);
}

// Narrower than the digits of the points, which are 32-bit floats.
function tooNarrow([low, high]) {
  return high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high));
}

function usable(value, log) {
  return Number.isFinite(value) && (!log || value > 0);
}

const ascending = (one, other) => one - other;

// The place in an ascending list that is nearest to a value; on a log axis, by the ratio.
function nearestIndex(list, value, log) {
  let low = 0, high = list.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle + 1;
    else high = middle;
  }
  if (!low) return 0;
  const before = list[low - 1], after = list[low];
  const first = log ? value / before <= after / value : value - before <= after - value;
  return first ? low - 1 : low;
}

// --- elements ----------------------------------------------------------------------------------------

function element(kind, name, parent) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  parent.append(made);
  return made;
}

// The colour that is seen behind an element.
function background(place) {
  for (let each = place; each; each = each.parentElement) {
    const color = getComputedStyle(each).backgroundColor;
    if (color !== "transparent" && !color.endsWith(", 0)")) return color;
  }
  return "Canvas";
}

function fillLegend(place, entries) {
  place.replaceChildren();
  place.hidden = !entries.length;
  for (const entry of entries) {
    const one = element("span", "labkit-chart-entry", place);
    swatch(one, entry);
    element("span", "", one).textContent = entry.label;
  }
}

function swatch(parent, { color, dash }) {
  const made = element("i", "labkit-chart-swatch", parent);
  const black = color === "#000000" || color === "#ffffff";
  made.style.borderTopColor = black ? "currentColor" : color;
  made.style.borderTopStyle = dash === "--" ? "dashed" : dash === ":" ? "dotted" : "solid";
}

// The numbers of one buffer as arrays of these lengths.
function split(view, lengths) {
  if (!view || !view.byteLength) return lengths.map(() => new Float32Array());
  const numbers = new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  let from = 0;
  return lengths.map((length) => numbers.subarray(from, (from += length)));
}
