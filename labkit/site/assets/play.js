// Sliders over recorded runs. The address keeps the last one that was turned: #name=value.
(() => {
  const SLIDERS = JSON.parse(document.getElementById("sliders").textContent);
  const top = document.body.dataset.top;

  class Slider {
    constructor(section) {
      this.section = section;
      this.name = section.dataset.slider;
      this.about = SLIDERS[this.name];
      this.input = section.querySelector("input");
      this.output = section.querySelector("output");
      this.chart = section.querySelector(".slider-chart");
      this.verdict = section.querySelector(".verdict");
      this.input.addEventListener("input", () => {
        this.show();
        if ("address" in section.dataset) history.replaceState(null, "", `#${this.name}=${this.place.value}`);
      });
      this.set(this.about.places[this.about.start].value);
    }

    get place() {
      return this.about.places[Number(this.input.value)];
    }

    // Move to the run with this value; whether there is one.
    set(value) {
      const number = this.about.places.findIndex((place) => place.value === value);
      if (number >= 0) this.input.value = number;
      this.show();
      return number >= 0;
    }

    show() {
      const { place } = this;
      this.output.textContent = place.value;
      this.input.setAttribute("aria-valuetext", `${this.about.knob} ${place.value}`);
      this.say(place);
      this.input.style.setProperty("--at", `${(100 * this.input.value) / this.input.max}%`);
      const { lines, legend } = window.labkitLosses(place.curves);
      window.labkitCurves(this.chart, [this.pane(lines)], legend);
    }

    // The axes are those of all runs of the slider, so that turning it shows the difference.
    pane(lines) {
      const steps = Math.max(...this.about.places.map((place) => Math.max(...place.curves.loss.x)));
      const usable = (values) => values.filter((value) => value !== null && value > 0);
      const all = this.about.places.flatMap((place) => usable(place.curves.loss.y));
      const here = lines.flatMap((line) => usable(line.y));
      const low = Math.max(1e-4, Math.min(...all)), high = Math.max(4, Math.min(1e6, Math.max(...here)));
      const x = { label: "step", log: false, limits: [-0.02 * steps, 1.02 * steps], whole: true };
      const y = { label: "loss", log: true, limits: [low * 0.8, high * 1.25] };
      return { title: `Loss at ${this.about.knob} ${this.place.value}`, notes: [], shapes: [], x, y, lines };
    }

    say(place) {
      const { verdict } = this, bad = Boolean(place.verdict.name);
      verdict.classList.toggle("bad", bad);
      const title = document.createElement("b");
      title.textContent = bad ? place.verdict.title : "No failure shows";
      const score = document.createElement("div");
      score.textContent = `accuracy ${place.score} after ${place.steps} steps, loss ${place.end.first || "not finite"} → ${place.end.last}`;
      const words = document.createElement("div");
      words.textContent = bad ? place.verdict.seen : "";
      verdict.replaceChildren(title, score, words);
      if (bad && place.verdict.name !== "unsure") {
        const link = document.createElement("a");
        link.href = `${top}modes/${place.verdict.name}.html`;
        link.textContent = "Why, and the cure";
        verdict.append(link);
      }
    }
  }

  const made = [...document.querySelectorAll("[data-slider]")].map((section) => new Slider(section));
  function fromAddress() {
    const [name, value] = decodeURIComponent(location.hash.slice(1)).split("=");
    const slider = made.find((each) => each.name === name);
    if (slider && value !== undefined && slider.set(value)) slider.section.scrollIntoView({ block: "center" });
  }
  window.addEventListener("hashchange", fromAddress);
  fromAddress();
})();
