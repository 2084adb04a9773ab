"use strict";
// Puts the page together: views, theme, and what depends on the width.

const THEMES = ["auto", "light", "dark"];

function showView() {
  const view = ["prompt", "chat", "server"].find((name) => location.hash === `#/${name}`) ?? "prompt";
  document.body.dataset.view = view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  find("theme-name").textContent = theme;
  localStorage.setItem("theme", theme);
}

function start() {
  setTheme(localStorage.getItem("theme") ?? "auto");
  find("theme").addEventListener("click", () => {
    const place = THEMES.indexOf(document.documentElement.dataset.theme);
    setTheme(THEMES[(place + 1) % THEMES.length]);
  });

  showView();
  const playground = new Playground();
  addEventListener("hashchange", () => {
    showView();
    playground.turn();
  });

  const wide = matchMedia("(min-width: 900px)");
  const fit = () => (find("settings").open = wide.matches);
  wide.addEventListener("change", fit);
  fit();

  for (const id of ["prompt", "system"]) {
    const box = find(id);
    box.value = sessionStorage.getItem(id) ?? "";
    box.addEventListener("change", () => sessionStorage.setItem(id, box.value));
  }
  new LiveView((info) => playground.setInfo(info));
}

start();
