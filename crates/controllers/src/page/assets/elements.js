// Elements of the document. Every value becomes text: no string is parsed as HTML.

/** Returns an element. Attributes that are null, undefined or false are left out. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value);
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Names that can be a part of a path: those of Kubernetes objects. */
const NAME = /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/;

/** Returns the path of an object, or null if a name cannot be one of the API's. */
export function path(kind, ...names) {
  return names.every((name) => NAME.test(name)) ? `/${kind}/${names.join("/")}` : null;
}

/** Returns a link to an object, or text if it cannot have a page. */
export function link(text, href, attributes = {}) {
  return href ? element("a", { href, ...attributes }, text) : element("span", attributes, text);
}

/** Returns a link to a network, from its name NAMESPACE/NAME. */
export function networkLink(name, attributes = {}) {
  const parts = name.split("/");
  return link(name, parts.length === 2 ? path("network", ...parts) : null, attributes);
}

export function podLink(namespace, name) {
  const text = [element("span", { class: "namespace" }, `${namespace}/`), name];
  return link(text, path("pod", namespace, name), { class: "name" });
}

/** Names of the states of a pod, for people. */
export const STATES = {
  attached: ["Attached", "ok"],
  waiting: ["Waiting", "wait"],
  failing: ["Failing", "bad"],
  missing: ["Missing network", "bad"],
  invalid: ["Invalid annotation", "bad"],
  ended: ["Ended", "off"],
};

export function badge(text, tone) {
  return element("span", { class: `badge ${tone}` }, text);
}

export function stateBadge(state) {
  const [text, tone] = STATES[state] ?? [state, "off"];
  return badge(text, tone);
}

/** Returns a bar with its numbers as text. `part` and `whole` are numbers. */
export function bar(part, whole, text) {
  const percent = whole > 0 ? Math.min(100, (100 * part) / whole) : 0;
  const tone = percent >= 90 ? "bad" : percent >= 75 ? "wait" : "ok";
  const inside = element("span", { class: `inside ${tone}` });
  inside.style.setProperty("inline-size", `${percent}%`);
  return element("span", { class: "fill" }, element("span", { class: "bar", "aria-hidden": "true" }, inside), text);
}

/** Returns a duration in short: `42 s`, `5 min`, `3 h`, `2 d`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) return `${whole} s`;
  if (whole < 90 * 60) return `${Math.round(whole / 60)} min`;
  if (whole < 36 * 3600) return `${Math.round(whole / 3600)} h`;
  return `${Math.round(whole / 86400)} d`;
}

/** Returns the time of an event, relative to now. */
export function ago(text) {
  const time = Date.parse(text);
  if (Number.isNaN(time)) return element("span", { class: "muted" }, "–");
  const at = new Date(time).toISOString();
  return element("time", { datetime: at, title: at }, `${duration((Date.now() - time) / 1000)} ago`);
}

/** Returns a list of facts; a fact without a value is left out. */
export function facts(...pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", { class: "facts" }, shown.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

export function empty(title, ...text) {
  return element("div", { class: "empty" }, element("p", { class: "title" }, title), element("p", {}, ...text));
}

export function number(value) {
  return Number(value).toLocaleString("en");
}
