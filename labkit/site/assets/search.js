// The search: all words must be found, as beginnings of words; the title counts most. Nothing is sent anywhere.
(() => {
  const IGNORED = new Set(["a", "after", "an", "and", "at", "be", "but", "can", "do", "does", "for", "from", "i", "in", "is", "it", "its", "my", "of", "on", "or", "so", "still", "that", "the", "to", "was", "what", "when", "while", "why", "with", "not"]);
  const FIELDS = [["t", 12], ["d", 4], ["w", 3], ["k", 1]];
  const MOST = 40, ALL = 1000, ENOUGH = 5;
  const field = document.getElementById("q"), list = document.querySelector(".results"), state = document.querySelector(".state");
  const top = document.body.dataset.top;
  const split = (text) => (text.toLowerCase().match(/[\p{L}\p{N}_]+(?:[.'-][\p{L}\p{N}_]+)*/gu) || []);
  const entries = window.labkitSearch.map((entry) => ({ entry, words: FIELDS.map(([name]) => split(entry[name])) }));

  // 2.3 and 2.30 are one number, and stalls is found by stall.
  function alike(word, wanted) {
    if (word === wanted) return 1;
    if (/^\d+\.\d+$/.test(wanted) && /^\d+\.\d+$/.test(word)) return Number(word) === Number(wanted) ? 1 : 0;
    if (/^\d/.test(wanted)) return 0;
    if (word.startsWith(wanted)) return 0.7;
    const stem = wanted.replace(/(ing|ed|es|s)$/, "");
    return stem.length > 3 && word.startsWith(stem) ? 0.5 : 0;
  }

  function score({ entry, words }, wanted) {
    let sum = 0, found = 0;
    for (const want of wanted) {
      let best = 0;
      words.forEach((field, number) => {
        for (const word of field) best = Math.max(best, FIELDS[number][1] * alike(word, want));
      });
      if (best) found += 1;
      sum += best;
    }
    if (found < wanted.length && found < Math.max(2, wanted.length - 1)) return 0;
    const all = found === wanted.length ? ALL : 0;
    return sum + all + ({ symptom: 25, "failure mode": 2, "error message": 2 }[entry.k] || 0);
  }

  // Pages with all of the words; where they are few, those with all but one follow.
  function best(found) {
    const all = found.filter(([points]) => points > ALL);
    return all.length >= ENOUGH ? all : found;
  }

  function show() {
    const query = field.value.trim();
    let wanted = split(query).filter((word) => !IGNORED.has(word));
    if (!wanted.length) wanted = split(query);
    const found = wanted.length
      ? best(entries.map((each) => [score(each, wanted), each.entry]).filter(([points]) => points > 0).sort((a, b) => b[0] - a[0]))
      : [];
    list.replaceChildren(...found.slice(0, MOST).map(([, entry]) => result(entry)));
    if (!query) state.textContent = "Type what you see, or the words of an error message.";
    else if (found.length > MOST) state.textContent = `The best ${MOST} of ${found.length} pages for “${query}”`;
    else if (found.length) state.textContent = `${found.length} ${found.length === 1 ? "page" : "pages"} for “${query}”`;
    else state.textContent = `Nothing for “${query}”. Try one word of it, or start from the symptoms.`;
  }

  function result(entry) {
    const row = document.createElement("li"), link = document.createElement("a"), kind = document.createElement("small");
    link.href = top + entry.u;
    link.textContent = entry.t;
    kind.textContent = entry.k;
    const about = document.createElement("p");
    about.textContent = entry.d;
    row.append(link, kind, about);
    return row;
  }

  field.value = new URLSearchParams(location.search).get("q") || "";
  field.addEventListener("input", show);
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    history.replaceState(null, "", `?q=${encodeURIComponent(field.value)}`);
    show();
  });
  show();
})();
