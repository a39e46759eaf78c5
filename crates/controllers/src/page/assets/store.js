// Rows of the cluster, as the stream of the server sends them, and the state of the connection.

import { judge } from "./failing.js";

const TABLES = ["networks", "nodes", "pools", "blocks", "policies", "events", "pods"];
/** Key of the token in the storage of this tab. It is forgotten when the tab is closed. */
const TOKEN = "weft-token";
/** Longest pause between two attempts to connect, in milliseconds. */
const PAUSE_MAX = 15000;
/** Silence after which the connection counts as lost, in milliseconds: the server sends something every 15 seconds. */
const SILENCE_MAX = 45000;

const tables = () => Object.fromEntries(TABLES.map((name) => [name, new Map()]));

export const store = {
  tables: tables(),
  /** Description of the viewer, once it is known. */
  viewer: null,
  /** Whether all rows were received once. */
  isReady: false,
  /** `connecting`, `live`, `lost`, `token`. */
  connection: "connecting",
  /** Reason why the connection is lost, or the token refused. */
  why: "",
  /** Seconds since the API server was last reached by the server, as the server said at `ageAt`. */
  age: 0,
  ageAt: 0,
  /** Resources that the server could not list. */
  waits: [],
  /** Time of the last message, in milliseconds. */
  heardAt: 0,
  listeners: new Set(),
};

/** Tables that are filled while the old ones are still shown. */
let incoming = null;
let abort = null;
let isScheduled = false;

/** Calls the listeners soon, once for many changes. */
function changed() {
  judged = null;
  if (isScheduled) return;
  isScheduled = true;
  setTimeout(() => {
    isScheduled = false;
    for (const listener of store.listeners) listener();
  }, store.isReady ? 150 : 40);
}

export const key = (namespace, name) => `${namespace}/${name}`;

/** Pods with their failures, until a row changes. */
let judged = null;

function judgedPods() {
  judged ??= judge(store.tables.pods, store.tables.events.values());
  return judged;
}

export function rows(table) {
  return [...(table === "pods" ? judgedPods() : store.tables[table]).values()];
}

/** Returns the row of a pod, with its failure if it fails. */
export function podOf(namespace, name) {
  return judgedPods().get(key(namespace, name));
}

/** Whether a resource is not in the cluster or cannot be read, with the reason. */
export function waitsFor(table) {
  return store.waits.find((text) => text === table || text.startsWith(`${table} (`)) ?? null;
}

export function signIn(token) {
  sessionStorage.setItem(TOKEN, token);
  reconnect();
}

export function signOut() {
  sessionStorage.removeItem(TOKEN);
  Object.assign(store, { tables: tables(), viewer: null, isReady: false });
  reconnect();
}

function reconnect() {
  store.connection = "connecting";
  abort?.abort("reconnect");
  changed();
}

const handlers = {
  viewer(data) {
    store.viewer = data;
    incoming = store.isReady ? tables() : null;
    if (!incoming) store.tables = tables();
  },
  again() {
    incoming = tables();
  },
  rows({ set, gone }) {
    const to = incoming ?? store.tables;
    for (const [table, all] of Object.entries(set)) {
      for (const row of all) to[table]?.set(key(...row.k), row);
    }
    for (const [table, keys] of Object.entries(gone)) {
      for (const names of keys) to[table]?.delete(key(...names));
    }
  },
  ready() {
    if (incoming) store.tables = incoming;
    incoming = null;
    store.isReady = true;
  },
  state({ age, waits }) {
    Object.assign(store, { age, waits, ageAt: Date.now() });
  },
  denied(why) {
    Object.assign(store, { why });
  },
};

/** Handles one event of the stream. */
function handle(text) {
  let name = "";
  let data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (!handlers[name]) return;
  handlers[name](JSON.parse(data));
  changed();
}

async function read(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  signal.addEventListener("abort", () => reader.cancel().catch(() => {}));
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    store.heardAt = Date.now();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    parts.forEach(handle);
  }
}

/** Connects once. Returns whether the next attempt follows at once. */
async function connect() {
  abort = new AbortController();
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch("/api/stream", { headers, signal: abort.signal, cache: "no-store" });
  } catch (error) {
    if (abort.signal.aborted) return true;
    store.why = "the page does not answer";
    return false;
  }
  if (response.status === 401) {
    const why = (await response.text()).trim();
    Object.assign(store, { connection: "token", why: token ? why : "", viewer: null, isReady: false, tables: tables() });
    changed();
    await new Promise((resolve) => abort.signal.addEventListener("abort", resolve));
    return true;
  }
  if (!response.ok) {
    store.why = (await response.text()).trim().slice(0, 300) || `status ${response.status}`;
    return false;
  }
  Object.assign(store, { connection: "live", why: "", heardAt: Date.now() });
  changed();
  try {
    await read(response, abort.signal);
  } catch {
    // The connection ended: it is tried again.
  }
  return abort.signal.aborted;
}

/** Keeps the connection until the tab is closed. */
export async function run() {
  let pause = 500;
  setInterval(() => {
    if (store.connection === "live" && Date.now() - store.heardAt > SILENCE_MAX) abort?.abort("silence");
    if (store.age > 0 || store.connection === "lost") changed();
  }, 1000);
  for (;;) {
    const isAtOnce = await connect();
    if (isAtOnce) {
      pause = 500;
      continue;
    }
    pause = store.connection === "live" ? 500 : Math.min(pause * 2, PAUSE_MAX);
    store.connection = "lost";
    changed();
    await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
  }
}
