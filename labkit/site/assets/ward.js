// The ward: order instruments, name the failure, open the file. The files are opened in the page.
(() => {
  const WARD = JSON.parse(document.getElementById("ward").textContent);
  const AGAIN = 2, TRIES = 3; // as in labkit.ward: points for each further try, and how many there are
  const top = document.body.dataset.top, score = document.querySelector(".score");

  function opened(number) {
    const bytes = Uint8Array.from(atob(WARD.patients[number]), (letter) => letter.charCodeAt(0) ^ WARD.key);
    return JSON.parse(new TextDecoder().decode(bytes));
  }

  class Patient {
    constructor(section) {
      this.section = section;
      this.number = section.dataset.patient;
      this.file = opened(this.number);
      this.spent = 0;
      this.tries = [];
      this.done = false;
      for (const button of section.querySelectorAll("[data-order]")) button.addEventListener("click", () => this.order(button));
      section.querySelector("form").addEventListener("submit", (event) => {
        event.preventDefault();
        this.name(section.querySelector("select").value);
      });
      section.querySelector(".open-file").addEventListener("click", () => this.open());
    }

    get points() {
      const best = Math.max(0, ...this.tries.map((points, before) => points - AGAIN * before));
      return Math.max(0, best - this.spent);
    }

    order(button) {
      const name = button.dataset.order;
      if (button.getAttribute("aria-pressed") === "true") return;
      button.setAttribute("aria-pressed", "true");
      if (!this.done) this.spent += WARD.prices[name];
      const finding = this.file.findings[name];
      const place = document.createElement("div"), title = document.createElement("h3"), list = document.createElement("dl");
      place.className = "finding";
      title.textContent = button.firstChild.textContent.trim();
      for (const [label, words] of finding.rows) {
        list.append(Object.assign(document.createElement("dt"), { textContent: label }));
        list.append(Object.assign(document.createElement("dd"), { textContent: words }));
      }
      place.append(title, list);
      this.section.querySelector(".findings").append(place);
      if (finding.panes.length) {
        const chart = document.createElement("div");
        place.append(chart);
        window.labkitCurves(chart, finding.panes);
      }
      say();
    }

    name(failure) {
      const feedback = this.section.querySelector(".feedback");
      if (this.done) return;
      if (!failure) return void (feedback.textContent = "Choose a failure first.");
      const [words, [points]] = Object.entries(this.file.grades).find(([, [, names]]) => names.includes(failure));
      this.tries.push(points);
      feedback.textContent = words;
      if (points === WARD.right || this.tries.length >= TRIES) this.open();
      say();
    }

    open() {
      if (this.done) return;
      this.done = true;
      const { answer } = this.file, feedback = this.section.querySelector(".feedback");
      const link = Object.assign(document.createElement("a"), { href: `${top}modes/${answer.failure}.html`, textContent: answer.title });
      feedback.append(" The file is open: ", link, `. Cure: ${answer.cure}. ${this.points} of ${WARD.right} points.`);
      for (const button of this.section.querySelectorAll("form button, form select")) button.disabled = true;
      say();
    }
  }

  const patients = [...document.querySelectorAll("[data-patient]")].map((section) => new Patient(section));
  function say() {
    const points = patients.reduce((sum, each) => sum + each.points, 0), open = patients.filter((each) => each.done).length;
    const end = open === patients.length ? " All files are open." : "";
    score.textContent = `${points} of ${WARD.right * patients.length} points, ${open} of ${patients.length} files open.${end}`;
  }
  say();
})();
