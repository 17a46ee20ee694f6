"use strict";
/* What makes the desk nicer: live updates, keys, suggestions. Every page works without it. */
{
const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const page = document.documentElement;
const make = (tag, values = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), values);
  made.append(...children);
  return made;
};
const show = (element) => { if (element) element.hidden = false; };

/* ── theme ─────────────────────────────────────────────────────────────────────────────────────── */

const themes = ["auto", "dark", "light"];
const themeButton = find("#theme");
themeButton?.form.addEventListener("submit", (event) => {
  event.preventDefault();
  const chosen = themes[(themes.indexOf(page.dataset.theme) + 1) % themes.length];
  const following = themes[(themes.indexOf(chosen) + 1) % themes.length];
  page.dataset.theme = chosen;
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `homing_theme=${chosen}; path=/; max-age=31536000; samesite=lax${secure}`;
  themeButton.title = `Theme: ${chosen}`;
  themeButton.ariaLabel = `Theme: ${chosen}. Change to ${following}`;
});

/* ── times that tick ───────────────────────────────────────────────────────────────────────────── */

const skew = page.dataset.now ? Date.parse(page.dataset.now) - Date.now() : 0;
const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const ago = (at) => {
  const seconds = (Date.now() + skew - at) / 1000;
  const unit = units.find(([size]) => Math.abs(seconds) >= size);
  if (!unit) return "now";
  const amount = `${Math.floor(Math.abs(seconds) / unit[0])} ${unit[1]}`;
  return seconds > 0 ? `${amount} ago` : `in ${amount}`;
};
const tick = (root = document) => {
  for (const time of all("time[data-ago]", root)) {
    const text = ago(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
};
setInterval(() => { if (!document.hidden) tick(); }, 1000);

/* ── asking before something dangerous, and copying ────────────────────────────────────────────── */

const ask = (question, label, then, tone = "danger") => {
  const dialog = make("dialog", { ariaLabel: question });
  const no = make("button", { type: "button", className: "button", textContent: "Back", autofocus: true });
  const yes = make("button", { type: "button", className: `button ${tone}`, textContent: label, id: "confirm-yes" });
  no.addEventListener("click", () => dialog.close());
  yes.addEventListener("click", () => { dialog.close(); then(); });
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(make("h2", { textContent: question }), make("div", { className: "actions" }, no, yes));
  document.body.append(dialog);
  dialog.showModal();
};
document.addEventListener("submit", (event) => {
  const { target: form, submitter } = event;
  const question = submitter?.dataset.confirm || form.dataset.confirm;
  if (!question || form.dataset.confirmed) return;
  event.preventDefault();
  ask(question, submitter?.textContent.trim() || "Yes", () => {
    form.dataset.confirmed = "yes";
    form.requestSubmit(submitter);
    delete form.dataset.confirmed;
  });
});
for (const button of all("[data-copy]")) {
  show(button);
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.value ?? source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
}

/* ── selecting in the list ─────────────────────────────────────────────────────────────────────── */

const rows = find("#rows");
const selection = find("#selection");
const boxes = () => (rows ? all("input[name=id]", rows) : []);
const countSelected = () => {
  if (!selection || !rows) return;
  const chosen = boxes().filter((box) => box.checked);
  for (const box of boxes()) box.closest("tr").ariaSelected = box.checked ? "true" : null;
  find("#selected-count").textContent = chosen.length ? `${chosen.length} selected:` : "";
  selection.hidden = !chosen.length && !find("#all-that-match");
  for (const button of all("button[data-verb]", selection)) {
    button.hidden = !chosen.length;
    button.dataset.confirm = button.dataset.verb === "cancel" ? `Cancel ${chosen.length} selected?` : "";
  }
  selection.classList.toggle("sticky", chosen.length > 0);
  const every = find("#select-all");
  every.checked = chosen.length > 0 && chosen.length === boxes().length;
  every.indeterminate = chosen.length > 0 && !every.checked;
};
if (selection && rows) {
  const every = find("#select-all");
  show(every);
  every.addEventListener("change", () => {
    for (const box of boxes()) box.checked = every.checked;
    countSelected();
  });
  rows.addEventListener("change", countSelected);
  addEventListener("pageshow", countSelected);
  countSelected();
}

/* ── live updates ──────────────────────────────────────────────────────────────────────────────── */

const live = find("#live");
const say = (text, look = "") => {
  if (!live) return;
  live.hidden = false;
  live.className = `live ${look}`;
  if (live.textContent !== text) live.textContent = text;
};
const parse = (html) => {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const made = holder.content.firstElementChild;
  tick(holder.content);
  return made;
};
const keepOpen = (before, after) => {
  for (const one of all("details[open][id]", before)) {
    const same = find(`#${CSS.escape(one.id)}`, after);
    if (same) same.open = true;
  }
};
class Live {
  constructor(root) {
    this.root = root;
    this.list = rows && root.contains(rows) ? rows : null;
    this.waiting = new Map();
    this.wanted = true;
    this.tail = find("#tail");
    document.addEventListener("visibilitychange", () => this.follow());
    addEventListener("pagehide", () => this.stop());
    addEventListener("pageshow", () => this.follow());
    for (const name of ["pointerleave", "focusout"]) root.addEventListener(name, () => setTimeout(() => this.apply()));
    addEventListener("scroll", () => this.apply(), { passive: true });
    if (this.tail && this.list) {
      show(this.tail);
      this.tail.addEventListener("click", () => {
        this.wanted = !this.wanted;
        this.tail.ariaPressed = String(this.wanted);
        this.follow();
      });
    }
    this.follow();
  }
  /* A tab that nobody looks at follows nothing. */
  follow() {
    if (document.hidden || !this.wanted) {
      this.stop();
      say("Not live");
    } else if (!this.source) {
      this.source = new EventSource(this.root.dataset.topic);
      this.source.addEventListener("open", () => { this.away = false; this.tell(); });
      this.source.addEventListener("error", () => this.broken());
      this.source.addEventListener("pieces", (event) => this.take(JSON.parse(event.data)));
      this.source.addEventListener("away", (event) => { this.away = true; say(`Waiting: ${JSON.parse(event.data).why}`, "off"); });
      this.source.addEventListener("over", () => { this.stop(); this.wanted = false; say("Logged out: load the page again", "off"); });
    }
  }
  stop() {
    this.source?.close();
    this.source = null;
  }
  broken() {
    say("Reconnecting …", "off");
    if (this.source?.readyState !== EventSource.CLOSED) return;
    this.stop();
    clearTimeout(this.again);
    this.again = setTimeout(() => this.follow(), 15000);
  }
  tell() {
    if (this.away || !this.source) return;
    const news = this.list ? [...this.waiting.keys()].filter((key) => !document.getElementById(key)).length : 0;
    say(this.isBusy() ? (news ? `Not live, ${news} new` : "Not live") : "Live", this.isBusy() ? "" : "on");
  }
  /* What somebody points at, works with or reads must not move away. */
  isBusy() {
    if (this.root.contains(document.activeElement) || find("dialog[open]")) return true;
    return Boolean(this.list) && (find("input:checked", this.list) !== null || scrollY > 200 || find(":hover", this.list) !== null || this.list.matches(":hover"));
  }
  take({ put, gone, all: whole }) {
    this.away = false;
    if (whole && this.list) {
      const there = new Set(put.map(([key]) => key));
      gone = [...this.list.children].map((row) => row.id).filter((id) => !there.has(id));
    }
    for (const [key, html] of put.reverse()) { this.waiting.delete(key); this.waiting.set(key, html); }
    /* What came and went while nobody could be shown it need not be kept. */
    for (const key of gone) { this.waiting.delete(key); if (document.getElementById(key)) this.waiting.set(key, null); }
    this.apply();
  }
  apply() {
    if (this.isBusy()) { this.tell(); return; }
    let fresh = 0;
    for (const [key, html] of this.waiting) fresh += this.place(key, html);
    this.waiting.clear();
    this.tell();
    if (!this.list) return;
    find("#list").classList.toggle("waits", !this.list.children.length);
    if (this.list.children.length) find("#nothing")?.remove();
    if (fresh) find("#tail-news").textContent = `${fresh} new ${fresh === 1 ? "message" : "messages"}`;
    countSelected();
  }
  place(key, html) {
    const old = document.getElementById(key);
    if (html === null) {
      if (old && !find("input:checked", old)) old.remove();
      return 0;
    }
    const made = parse(html);
    if (old) {
      keepOpen(old, made);
      const box = find("input[name=id]", made);
      if (box) box.checked = find("input[name=id]", old)?.checked;
      old.replaceWith(made);
      if (made.dataset.verbs !== old.dataset.verbs) location.reload();
      if (made.dataset.over === "yes") { this.stop(); find("#stop-run")?.form.remove(); }
      return 0;
    }
    if (!this.list) return 0;
    made.classList.add("fresh");
    this.list.prepend(made);
    return 1;
  }
}
const followed = find("[data-topic]");
if (followed && "EventSource" in window) new Live(followed);

/* ── keys ──────────────────────────────────────────────────────────────────────────────────────── */

const places = { o: "/", m: "/messages", d: "/dead", b: "/bulk", t: "/targets", c: "/credentials", s: "/subscriptions", q: "/queues", w: "/workers", r: "/router", l: "/alerts", a: "/audit", k: "/access", h: "/health" };
const help = [
  ["/", "search"], ["j k", "next and previous row"], ["o Enter", "open it"], ["x", "select it"], ["r", "requeue it, or what is selected"],
  ["g o", "overview"], ["g m", "messages"], ["g d", "dead letters"], ["g b", "bulk runs"], ["g t", "targets"], ["g c", "credentials"], ["g s", "subscriptions"], ["g q", "queues"], ["g w", "workers"], ["g r", "router"], ["g l", "alerts"], ["g a", "audit"], ["g k", "access: keys and users"], ["g h", "health"],
  ["?", "this list"],
];
const lines = () => all("tbody tr").filter((row) => find("a[href]", row) && row.offsetParent);
const here = () => lines().find((row) => row.contains(document.activeElement));
const move = (step) => {
  const found = lines();
  if (!found.length) return;
  const place = found.indexOf(here());
  const next = found[place < 0 ? (step > 0 ? 0 : found.length - 1) : Math.min(Math.max(place + step, 0), found.length - 1)];
  find("a[href]", next).focus();
  next.scrollIntoView({ block: "nearest" });
};
const pick = (row) => {
  const box = row && find("input[name=id]", row);
  if (!box) return;
  box.checked = !box.checked;
  box.dispatchEvent(new Event("change", { bubbles: true }));
};
const requeue = () => {
  const one = find("#do-requeue");
  if (one) { one.click(); return; }
  if (!selection) return;
  const row = here();
  if (!boxes().some((box) => box.checked) && row) pick(row);
  const button = find("button[data-verb=requeue]", selection);
  const count = boxes().filter((box) => box.checked).length;
  if (button && count) ask(`Requeue ${count} selected?`, "Requeue", () => selection.requestSubmit(button), "primary");
};
const showKeys = () => {
  const close = make("button", { type: "button", className: "button", textContent: "Close" });
  const list = make("dl", { className: "facts keys" }, ...help.map(([keys, means]) =>
    make("div", {}, make("dt", {}, ...keys.split(" ").map((key) => make("kbd", { textContent: key }))), make("dd", { textContent: means }))));
  const dialog = make("dialog", { id: "keys", ariaLabel: "Keyboard" }, make("h2", { textContent: "Keyboard" }), list, make("div", { className: "actions" }, close));
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
};
let afterG = 0;
const keys = {
  "/": () => (find("#q") ?? find("#top-search"))?.focus(),
  "?": showKeys,
  j: () => move(1),
  k: () => move(-1),
  x: () => pick(here()),
  o: () => { const row = here(); if (row) find("a[href]", row).click(); },
  r: requeue,
  g: () => { afterG = Date.now(); },
};
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select, dialog");
  if (event.key === "Escape" && typing && !typing.closest("dialog")) { event.preventDefault(); event.target.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !find("#menu")) return;
  const goes = Date.now() - afterG < 1200 && find(`#menu a[href="${places[event.key]}"]`);
  afterG = 0;
  if (goes) { event.preventDefault(); goes.click(); return; }
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
const keysButton = find("#show-keys");
if (keysButton) { show(keysButton); keysButton.addEventListener("click", showKeys); }
}
