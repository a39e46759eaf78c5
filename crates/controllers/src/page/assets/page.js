// Navigation between the views, and the state of the connection above them.

import { duration, element } from "./elements.js";
import { node, network, pod } from "./details.js";
import { run, signIn, signOut, store } from "./store.js";
import { addresses, failures, map, networks, nodes, openFailures, pods } from "./views.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const notice = document.getElementById("notice");
const leave = document.getElementById("leave");
const failureCount = document.getElementById("failures");

const LISTS = { "/": pods, "/map": map, "/networks": networks, "/nodes": nodes, "/addresses": addresses, "/failures": failures };
const DETAILS = { pod: [pod, 2, "/"], network: [network, 2, "/networks"], node: [node, 1, "/nodes"] };

let view = null;
let isSigningIn = false;
/** Reason that the form to sign in shows. */
let shownReason = "";

function unknown() {
  return { title: "Not found", node: element("div", { class: "empty" }, element("p", { class: "title" }, "This page does not exist"), element("a", { href: "/" }, "All pods")), update() {} };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function viewOf(pathname) {
  if (LISTS[pathname]) return [LISTS[pathname](), pathname === "/map" ? "/" : pathname];
  const [kind, ...names] = pathname.slice(1).split("/").map(decoded);
  const [make, count, list] = DETAILS[kind] ?? [];
  return make && names.length === count ? [make(...names), list] : [unknown(), ""];
}

/** Shows the view of the address. */
function show(isFocused) {
  isSigningIn = false;
  const [next, list] = viewOf(location.pathname);
  view = next;
  document.title = `${next.title} · weft`;
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.getAttribute("href") === list) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(next.node);
  update();
  if (isFocused) main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function form() {
  const input = element("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-help" });
  const submit = (event) => {
    event.preventDefault();
    const token = input.value.trim();
    if (token) signIn(token);
  };
  return element("form", { class: "sign-in", on: { submit } },
    element("h1", {}, "Sign in"),
    store.why ? element("p", { class: "problem", role: "alert" }, `The token was not accepted: ${store.why}.`) : "",
    element("label", { for: "token" }, "Token of a Kubernetes account"), input,
    element("p", { id: "token-help", class: "muted" }, "You see what the account may list. The token is kept in this tab until you close it. For example: ", element("code", {}, "kubectl create token ACCOUNT -n NAMESPACE")),
    element("button", { type: "submit", class: "primary" }, "Sign in"));
}

/** Returns a sentence about rights that the viewer lacks for everything. */
function lacking() {
  const may = store.viewer?.may;
  if (!may || may.pods !== 0) return "";
  return "Your account may list pods in no namespace that has a pod with networks: ask for the verb list on pods.";
}

function status() {
  const age = store.age > 0 ? store.age + (Date.now() - store.ageAt) / 1000 : 0;
  const states = {
    connecting: ["Connecting…", "wait", ""],
    token: ["Signed out", "off", ""],
    lost: ["Disconnected", "bad", `The page is disconnected (${store.why || "the connection ended"}) and tries again. The data below is ${duration((Date.now() - store.heardAt) / 1000)} old.`],
    live: ["Live", "ok", lacking()],
  };
  let [text, tone, why] = states[store.connection];
  if (store.connection === "lost" && store.heardAt === 0) why = `The page is disconnected: ${store.why}. It tries again.`;
  if (store.connection === "live" && !store.isReady) [text, tone] = ["Loading…", "wait"];
  if (store.connection === "live" && age > 0) [text, tone, why] = [`${duration(age)} old`, "bad", `The API server does not answer. The data below is ${duration(age)} old.`];
  if (live.textContent !== text) live.textContent = text;
  live.className = `live ${tone}`;
  if (notice.textContent !== why) notice.textContent = why;
  notice.hidden = !why;
  leave.hidden = !store.viewer?.token;
  leave.title = store.viewer?.user ? `Signed in as ${store.viewer.user}` : "";
  const open = openFailures();
  failureCount.textContent = open ? String(open) : "";
  failureCount.hidden = !open;
  failureCount.title = "Pods that fail now";
}

function update() {
  status();
  if (store.connection === "token") {
    if (!isSigningIn || shownReason !== store.why) {
      [isSigningIn, shownReason] = [true, store.why];
      main.replaceChildren(form());
      document.getElementById("token").focus();
    }
    return;
  }
  if (isSigningIn) show(true);
  else view?.update();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='/']");
  if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  show(true);
});
document.addEventListener("keydown", (event) => {
  const filter = document.getElementById("filter");
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "/" && filter && !isTyping) {
    event.preventDefault();
    filter.focus();
    filter.select();
  } else if (event.key === "Escape" && event.target === filter && filter.value) {
    event.preventDefault();
    filter.value = "";
    filter.dispatchEvent(new Event("input", { bubbles: true }));
  } else if (event.key === "ArrowDown" && event.target === filter) {
    event.preventDefault();
    document.querySelector("tbody tr:not(.space) a")?.focus();
  }
});
window.addEventListener("popstate", () => show(false));
leave.addEventListener("click", signOut);
store.listeners.add(update);
show(false);
run();
