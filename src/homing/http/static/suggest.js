"use strict";
/* Suggestions while a query line is written. */
{
const find = (selector) => document.querySelector(selector);
const make = (tag, values = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), values);
  made.append(...children);
  return made;
};

class Suggestions {
  constructor(input) {
    this.input = input;
    this.known = JSON.parse(input.dataset.suggest);
    this.box = make("ul", { id: "suggestions", className: "suggestions", role: "listbox", ariaLabel: "Suggestions", hidden: true });
    input.parentElement.append(this.box);
    for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-controls", "suggestions"], ["aria-expanded", "false"]]) input.setAttribute(name, value);
    input.addEventListener("input", () => this.offer());
    input.addEventListener("focus", () => this.offer());
    input.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    input.addEventListener("keydown", (event) => this.key(event));
  }
  get term() {
    return this.input.value.slice(0, this.input.selectionStart).match(/\S*$/)[0];
  }
  offers() {
    const [field, rest] = this.term.includes(":") ? this.term.split(/:(.*)/s) : ["", this.term];
    if (!field) return this.known.fields.filter(({ name }) => name.startsWith(rest)).map(({ name, means }) => [name.replace("KEY", "") + (name.includes("KEY") ? "" : ":"), means]);
    const typed = rest.split(",").pop();
    const head = this.term.slice(0, this.term.length - typed.length);
    return (this.known.values[field] ?? []).filter((value) => value.toLowerCase().startsWith(typed.toLowerCase()) && value !== typed).map((value) => [head + value, ""]);
  }
  offer() {
    this.close();
    const offers = this.offers().slice(0, 12);
    if (!offers.length || document.activeElement !== this.input) return;
    this.box.replaceChildren(...offers.map(([text, means], place) => {
      const item = make("li", { id: `suggestion-${place}`, role: "option", ariaSelected: "false" }, make("code", { textContent: text }), make("small", { className: "quiet", textContent: means }));
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); this.choose(text); });
      item.dataset.text = text;
      return item;
    }));
    this.place = -1;
    this.box.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
  }
  close() {
    this.box.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
  choose(text) {
    const { value, selectionStart: end } = this.input;
    const start = end - this.term.length;
    const space = /[:.]$/.test(text) ? "" : " ";
    this.input.setRangeText(text + space, start, end, "end");
    if (value !== this.input.value) this.offer();
  }
  key(event) {
    if (this.box.hidden) return;
    const items = [...this.box.children];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      items[this.place]?.setAttribute("aria-selected", "false");
      this.place = (this.place + (event.key === "ArrowDown" ? 1 : -1) + items.length) % items.length;
      items[this.place].setAttribute("aria-selected", "true");
      items[this.place].scrollIntoView({ block: "nearest" });
      this.input.setAttribute("aria-activedescendant", items[this.place].id);
    } else if ((event.key === "Enter" || event.key === "Tab") && this.place >= 0) {
      event.preventDefault();
      this.choose(items[this.place].dataset.text);
    } else if (event.key === "Escape") {
      /* Browsers would empty the field. */
      event.preventDefault();
      event.stopPropagation();
      this.close();
    }
  }
}
const queryLine = find("#q[data-suggest]");
if (queryLine) new Suggestions(queryLine);
}
