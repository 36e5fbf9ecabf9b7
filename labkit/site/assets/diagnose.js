// The diagnosis in the browser: Pyodide and NumPy are loaded with the first file; the file stays in this tab.
(() => {
  const drop = document.querySelector(".drop"), state = document.querySelector(".state"), place = document.querySelector(".answer");
  const titles = JSON.parse(document.getElementById("titles").textContent);
  const top = document.body.dataset.top;
  const FROM_A_FILE = "This page was opened from a file. Browsers load Python over HTTP only: run `labkit site --serve`.";
  let python = null;

  async function load() {
    const source = new URL(drop.dataset.source, location.href).href;
    state.textContent = "Loading Python …";
    const { loadPyodide } = await import(`${source}pyodide.mjs`);
    const made = await loadPyodide({ indexURL: source });
    state.textContent = "Loading NumPy …";
    await made.loadPackage("numpy", { messageCallback() {} });
    const answer = await fetch("labkit.zip");
    if (!answer.ok) throw new Error(`labkit.zip: ${answer.status}`);
    made.unpackArchive(await answer.arrayBuffer(), "zip");
    await made.runPythonAsync("from labkit.site.browser import torch_stub\ntorch_stub.install()\nfrom labkit.site.browser.answer import answer");
    return made;
  }

  async function diagnose(name, bytes) {
    place.hidden = true;
    if (location.protocol === "file:") return void (state.textContent = FROM_A_FILE);
    try {
      python ||= load();
      const ready = await python;
      state.textContent = `Reading ${name} …`;
      ready.FS.writeFile(name, bytes);
      ready.globals.set("path", name);
      const answer = JSON.parse(await ready.runPythonAsync("answer(path)"));
      ready.FS.unlink(name);
      show(name, answer);
    } catch (error) {
      python = null;
      state.textContent = `It did not work: ${error.message || error}`;
    }
  }

  function show(name, answer) {
    if (answer.error) {
      state.textContent = answer.error;
      return;
    }
    place.hidden = false;
    document.querySelector(".sample").hidden = true;
    place.querySelector("pre").textContent = answer.text;
    place.querySelector(".names").replaceChildren(...links(answer));
    const { lines, legend } = window.labkitLosses(answer.curves);
    const finite = lines.some((line) => line.y.some((value) => value !== null));
    window.labkitCurves(place.querySelector(".answer-chart"), finite ? [pane(lines)] : [], finite ? legend : []);
    state.textContent = answer.found.length ? `${name}: ${answer.found[0].title}` : `${name}: no failure shows`;
  }

  function links({ found, unsure }) {
    const names = found.flatMap((each) => (each.name === unsure ? each.candidates.slice(0, 8) : [each.name]));
    return names.flatMap((name) => [Object.assign(document.createElement("a"), { href: `${top}modes/${name}.html`, textContent: titles[name] }), " "]);
  }

  function pane(lines) {
    const values = lines.flatMap((line) => line.y).filter((value) => value !== null);
    const log = values.every((value) => value > 0);
    const low = Math.min(...values), high = Math.max(...values), room = log ? 1.15 : 0.05 * (high - low || 1);
    const steps = lines.flatMap((line) => line.x), first = Math.min(...steps), last = Math.max(...steps, first + 1);
    const limits = log ? [low / room, high * room] : [low - room, high + room];
    return { title: "Loss", notes: [], shapes: [], lines, x: { label: "step", log: false, whole: true, limits: [first, last] }, y: { label: "loss", log, limits } };
  }

  async function take(file) {
    if (file) await diagnose(file.name, new Uint8Array(await file.arrayBuffer()));
  }

  document.getElementById("file").addEventListener("change", (event) => take(event.target.files[0]));
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  for (const button of drop.querySelectorAll(".example"))
    button.addEventListener("click", async () => {
      const name = button.dataset.file;
      if (location.protocol === "file:") return void (state.textContent = FROM_A_FILE);
      const answer = await fetch(name);
      await diagnose(name, new Uint8Array(await answer.arrayBuffer()));
    });
})();
