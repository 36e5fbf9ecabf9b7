// Guess first: the first answer to each curve counts.
(() => {
  const score = document.querySelector(".score"), cards = [...document.querySelectorAll(".guess")];
  let right = 0, answered = 0;
  const left = () => (answered < cards.length ? `${cards.length - answered} to go` : "all named");
  const say = () => (score.textContent = answered ? `${right} of ${answered} right, ${left()}` : `${cards.length} curves to name`);
  for (const card of cards) {
    const buttons = [...card.querySelectorAll("button")];
    for (const button of buttons)
      button.addEventListener("click", () => {
        const correct = button.dataset.name === card.dataset.answer;
        answered += 1;
        right += correct;
        for (const each of buttons) {
          each.disabled = true;
          if (each.dataset.name === card.dataset.answer) {
            each.classList.add("right");
            each.textContent = `✓ ${each.textContent}`;
          } else if (each === button) each.classList.add("wrong");
        }
        card.querySelector(".reveal").hidden = false;
        say();
      });
  }
  say();
})();
