// Table that sorts its rows and renders only the visible ones.
//
// A column has `title`, `cell(row)`, and `value(row)` if the table can be sorted by it. All rows have the height --row.

import { element } from "./elements.js";

/** Number of rows that are rendered before and after the visible ones. */
const MARGIN = 12;
/** Number of rows of a table whose rows have their own heights. */
const FLOWING_MAX = 500;

export class Table {
  #columns;
  #rows = [];
  #sort;
  #isDescending = false;
  #first = -1;
  #last = -1;
  #body = element("tbody", { role: "rowgroup" });
  #table;
  #rowHeight = 34;
  #onSort;
  #isPure;
  #isFlowing;
  #shown = [];

  /**
   * `label` names the table; `sort` is the index of the first column to sort by, with `-` before it for descending.
   * `isPure`: cells depend on their row alone, so that rows which are the same objects are not rendered again.
   * `isFlowing`: a row is as high as its texts, nothing is cut off, and the first rows are rendered.
   */
  constructor({ label, columns, sort = "0", className = "", onSort = () => {}, isPure = false, isFlowing = false }) {
    this.#isPure = isPure;
    this.#isFlowing = isFlowing;
    this.#columns = columns;
    this.#onSort = onSort;
    this.#isDescending = sort.startsWith("-");
    this.#sort = Math.min(Math.abs(Number.parseInt(sort, 10)) || 0, columns.length - 1);
    this.head = element("tr", { role: "row", "aria-rowindex": "1" });
    this.#table = element("table", { role: "table", class: isFlowing ? `${className} flowing` : className, "aria-label": label },
      element("thead", { role: "rowgroup" }, this.head), this.#body);
    this.node = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, scrollable` },
      this.#table);
    this.node.addEventListener("scroll", () => this.#render(), { passive: true });
    this.#body.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#layout()).observe(this.node);
    this.#header();
  }

  /** Replaces the rows. */
  set(rows) {
    const count = this.#rows.length;
    this.#rows = rows;
    this.#order();
    const isSame = this.#isPure && count === rows.length && this.#shown.length > 0
      && this.#shown.every((row, index) => row === this.#rows[this.#first + index]);
    this.#render(!isSame);
  }

  #order() {
    const value = this.#columns[this.#sort]?.value;
    if (!value) return;
    const sign = this.#isDescending ? -1 : 1;
    const keyed = this.#rows.map((row) => [value(row), row]);
    keyed.sort(([a, one], [b, other]) => {
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
      return order * sign || key(one).localeCompare(key(other), "en", { numeric: true });
    });
    this.#rows = keyed.map(([, row]) => row);
  }

  #header() {
    const cells = this.#columns.map((column, index) => {
      const isSorted = index === this.#sort;
      const order = isSorted ? (this.#isDescending ? "descending" : "ascending") : null;
      const content = column.value
        ? element("button", { type: "button", title: column.hint, on: { click: () => this.#sortBy(index) } }, column.title)
        : element("span", { title: column.hint }, column.title);
      return element("th", { role: "columnheader", scope: "col", class: column.className, "aria-sort": order }, content);
    });
    this.head.replaceChildren(...cells);
  }

  #sortBy(index) {
    this.#isDescending = this.#sort === index ? !this.#isDescending : false;
    this.#sort = index;
    this.#header();
    this.#order();
    this.#render(true);
    this.#onSort(`${this.#isDescending ? "-" : ""}${index}`);
    this.head.children[index].querySelector("button")?.focus();
  }

  #layout() {
    const height = Number.parseFloat(getComputedStyle(this.node).getPropertyValue("--row"));
    if (height > 0) this.#rowHeight = height;
    this.#render(true);
  }

  #render(isForced = false) {
    const [rows, height] = [this.#rows, this.#rowHeight];
    const above = Math.floor(this.node.scrollTop / height);
    const visible = Math.ceil((this.node.clientHeight || 600) / height);
    const first = this.#isFlowing ? 0 : Math.max(0, Math.min(above - MARGIN, rows.length - visible - MARGIN));
    const last = this.#isFlowing ? Math.min(rows.length, FLOWING_MAX) : Math.min(rows.length, above + visible + MARGIN);
    if (!isForced && first === this.#first && last === this.#last) return;
    [this.#first, this.#last] = [first, last];
    const focused = document.activeElement?.closest?.("tr")?.dataset.key;
    const hadFocus = focused !== undefined && this.#body.contains(document.activeElement);
    this.#shown = rows.slice(first, last);
    const shown = this.#shown.map((row, index) => this.#row(row, first + index));
    this.#table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.#body.replaceChildren(...this.#space(first * height), ...shown, ...(this.#isFlowing ? [] : this.#space((rows.length - last) * height)));
    if (hadFocus) {
      const again = shown.find((row) => row.dataset.key === focused);
      again?.querySelector("a, button")?.focus({ preventScroll: true });
    }
  }

  #row(row, index) {
    const cells = this.#columns.map((column) =>
      element("td", { role: "cell", class: column.className, "data-title": column.title }, column.cell(row)));
    return element("tr", { role: "row", "aria-rowindex": String(index + 2), "data-key": key(row), "data-index": String(index) }, cells);
  }

  /** Returns a row in place of rows that are not rendered. */
  #space(height) {
    if (height <= 0) return [];
    const cell = element("td", { colspan: String(this.#columns.length) });
    cell.style.setProperty("height", `${height}px`);
    return [element("tr", { class: "space", "aria-hidden": "true" }, cell)];
  }

  /** Moves the focus to the first link of another row. */
  #move(event) {
    const row = event.target.closest("tr[data-index]");
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    if (!row || !(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const wanted = Number(row.dataset.index) + steps[event.key];
    this.focus(Math.max(0, Math.min(this.#rows.length - 1, wanted)));
  }

  /** Shows a row and moves the focus to its first link. */
  focus(index) {
    const height = this.#rowHeight;
    const head = this.head.offsetHeight;
    const top = index * height;
    const view = this.node;
    if (top < view.scrollTop) view.scrollTop = top;
    if (top + height + head > view.scrollTop + view.clientHeight) view.scrollTop = top + height + head - view.clientHeight;
    this.#render(true);
    if (this.#isFlowing) this.#body.querySelector(`tr[data-index="${index}"]`)?.scrollIntoView({ block: "nearest" });
    this.#body.querySelector(`tr[data-index="${index}"] :is(a, button)`)?.focus({ preventScroll: true });
  }
}

function key(row) {
  return row.k.join("/");
}
