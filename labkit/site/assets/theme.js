// Before anything is drawn: the theme that was chosen here, or else that of the system.
(() => {
  const root = document.documentElement, system = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("labkit-theme");
    } catch {
      return null; // storage is switched off
    }
  };
  const apply = () => root.classList.toggle("dark", (chosen() || (system.matches ? "dark" : "light")) === "dark");
  system.addEventListener("change", apply);
  apply();
  window.labkitTheme = () => {
    const next = root.classList.contains("dark") ? "light" : "dark";
    try {
      localStorage.setItem("labkit-theme", next);
    } catch {
      // it lasts for this page then
    }
    root.classList.toggle("dark", next === "dark");
  };
})();
