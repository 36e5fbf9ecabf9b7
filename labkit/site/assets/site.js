// What every page does: the theme button, the menu of small screens, buttons that copy code, filters, contents.
document.querySelector(".theme").addEventListener("click", () => window.labkitTheme());

const menu = document.querySelector(".menu"), navigation = document.getElementById("navigation");
menu.addEventListener("click", () => {
  const open = navigation.classList.toggle("open");
  menu.setAttribute("aria-expanded", String(open));
});

if (navigator.clipboard) {
  for (const code of document.querySelectorAll(".code")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.querySelector("pre").textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    code.append(button);
  }
}

for (const filter of document.querySelectorAll("[data-filter]")) {
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const each of document.querySelectorAll(filter.dataset.filter))
      each.hidden = !words.every((word) => each.textContent.toLowerCase().includes(word));
  });
}

// A formula that is too wide scrolls, also with the keyboard.
for (const formula of document.querySelectorAll(".formula")) if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;

// In the list of contents, the section that is being read.
const places = [...document.querySelectorAll(".contents a")].map((link) => [link, document.getElementById(decodeURIComponent(link.hash.slice(1)))]);
function mark() {
  const above = places.filter(([, heading]) => heading.getBoundingClientRect().top < 140);
  for (const [link] of places) link.classList.toggle("here", above.length > 0 && link === above.at(-1)[0]);
}
if (places.length) {
  window.addEventListener("scroll", mark, { passive: true });
  mark();
}

// A link to a folded part opens it.
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
}
window.addEventListener("hashchange", unfold);
unfold();
