// Lists: pods, map, networks, nodes, addresses and failures. Each function returns `{ title, node, update }`.

import { ago, badge, bar, element, empty, link, number, path, podLink, stateBadge, STATES } from "./elements.js";
import { key, podOf, rows, store, waitsFor } from "./store.js";
import { Table } from "./table.js";

const mono = (text) => element("span", { class: "mono" }, text);
const muted = (text) => element("span", { class: "muted" }, text);

/** Returns the interfaces of a pod as objects. */
export function interfaces(pod) {
  return pod.if.map(([network, name, ips, mac, mtu, isDefault]) => ({ network, name, ips, mac, mtu, isDefault }));
}

/** Returns the pods of each network, by NAMESPACE/NAME, from the rows that the viewer may see. */
export function podsByNetwork() {
  const all = new Map();
  const of = (network) => {
    if (!all.has(network)) all.set(network, { pods: [], missing: 0, addresses: 0 });
    return all.get(network);
  };
  for (const pod of rows("pods")) {
    for (const entry of pod.if) {
      if (entry[5] || entry[1] === "") continue;
      const known = of(entry[0]);
      if (known.pods.at(-1) !== pod) known.pods.push(pod);
      known.addresses += entry[2].length;
    }
    if (pod.state !== "ended") for (const network of pod.missing) of(network).missing += 1;
  }
  return all;
}

/** Returns the pool of a network: the one with a range that the definition names. */
export function poolsOf(network) {
  if (network.ipam !== "weft-ipam") return [];
  return rows("pools").filter((pool) => network.ranges.includes(pool.range) && pool.space === network.space);
}

/** Text for a number that the IPAM controller counts, and that no controller has counted. */
function uncounted() {
  return element("span", { class: "muted", title: "Unknown: the IPAM controller (weft controller --ipam) counts it, and has not yet" }, "unknown");
}

export function poolBar(pool) {
  if (pool.used === null) return uncounted();
  const all = Number(pool.addresses) || 0;
  return bar(pool.used, all, `${number(pool.used)} of ${all > 1e9 ? all.toExponential(1) : number(all)}`);
}

/** Text by which a row is found, in lower case. It is made once for each row. */
function textOf(pod) {
  pod.text ??= [pod.k.join("/"), pod.node, pod.state, ...pod.if.flatMap(([network, name, ips, mac]) => [network, name, ...ips, mac]), ...pod.missing]
    .join(" ").toLowerCase();
  return pod.text;
}

const FIELDS = {
  ns: (pod, value) => pod.k[0].startsWith(value),
  node: (pod, value) => pod.node.startsWith(value),
  state: (pod, value) => pod.state.startsWith(value),
  net: (pod, value) => pod.if.some(([network]) => network.includes(value)) || pod.missing.some((network) => network.includes(value)),
  ip: (pod, value) => pod.if.some(([, , ips]) => ips.some((ip) => ip.startsWith(value))),
};

/** Returns a filter for pods: words that all must occur, and words such as `node:w1`. */
export function podFilter(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => {
    const [, field, value] = /^([a-z]+):(.*)$/.exec(word) ?? [];
    return FIELDS[field] ? (pod) => FIELDS[field](pod, value) : (pod) => textOf(pod).includes(word);
  });
  return (pod) => tests.every((test) => test(pod));
}

function parameter(name) {
  return new URLSearchParams(location.search).get(name) ?? "";
}

/** Changes parameters of the address, so that it shows the same when it is opened again. */
function remember(parameters) {
  const search = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(parameters)) {
    if (value) search.set(name, value);
    else search.delete(name);
  }
  const text = search.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
}

function filterInput(label, placeholder, update) {
  return element("input", {
    type: "search", id: "filter", "aria-label": label, placeholder, value: parameter("q"), autocomplete: "off", spellcheck: "false",
    on: {
      input: (event) => {
        remember({ q: event.target.value });
        update();
      },
    },
  });
}

/** Returns what is shown instead of a table: the list is loading, is not permitted, or has no rows. */
function instead(table, what, none) {
  const { viewer } = store;
  const isListed = table !== "pods" || waitsFor(table) !== table;
  if (!viewer || !isListed || (!store.isReady && rows(table).length === 0)) return element("div", { class: "empty", role: "status" }, element("p", { class: "title loading" }, `Loading ${what}…`));
  const may = viewer.may[table];
  const waits = waitsFor(table);
  if (may === false || may === 0) return empty(`You may not list ${what}`, `Your account lacks the verb list for ${RESOURCES[table]}${may === 0 ? " in every namespace" : ""}. Ask an administrator of the cluster for it.`);
  if (waits && rows(table).length === 0) return empty(`No ${what} could be read`, `The cluster does not have the resource, or the page cannot list it: ${waits}.`);
  return empty(...none);
}

const RESOURCES = {
  pods: "pods", networks: "network-attachment-definitions.k8s.cni.cncf.io", nodes: "weftnodes.weft.dev",
  pools: "ippools.weft.dev", blocks: "ipblocks.weft.dev", events: "events", policies: "multi-networkpolicies.k8s.cni.cncf.io",
};

/** Shows a table, or what `instead` returns if there are no rows at all. */
function place(slot, table, isEmpty, otherwise) {
  const wanted = isEmpty ? otherwise() : table.node;
  if (isEmpty || slot.firstChild !== wanted) slot.replaceChildren(wanted);
}

function chips(pod) {
  const own = pod.if.filter((entry) => !entry[5]).slice(0, 6);
  const [home] = pod.k;
  const short = (network) => (network.startsWith(`${home}/`) ? network.slice(home.length + 1) : network);
  return [
    own.map(([network, , ips]) => element("span", { class: "chip" }, short(network), ips[0] ? mono(ips[0]) : null)),
    pod.missing.slice(0, 4).map((network) => element("span", { class: "chip bad" }, short(network), " missing")),
    pod.failure ? element("span", { class: "chip bad", title: pod.failure.note }, pod.failure.note) : null,
  ];
}

const POD_COLUMNS = [
  { title: "Pod", className: "main", value: (pod) => pod.k.join("/"), cell: (pod) => podLink(...pod.k) },
  { title: "State", className: "state", value: (pod) => Object.keys(STATES).reverse().indexOf(pod.state), cell: (pod) => stateBadge(pod.state) },
  { title: "Node", className: "node", value: (pod) => pod.node, cell: (pod) => link(pod.node || "–", pod.node ? path("node", pod.node) : null, { class: "plain" }) },
  { title: "Default network", className: "mono home", value: (pod) => pod.if.find((entry) => entry[5])?.[2][0] ?? "", cell: (pod) => pod.if.find((entry) => entry[5])?.[2].join(" ") ?? "–" },
  { title: "Additional networks", className: "wide", value: (pod) => pod.if.length + pod.missing.length, cell: chips },
];

function stateButtons(update) {
  const node = element("div", { class: "states", role: "group", "aria-label": "States" });
  const buttons = Object.entries(STATES).map(([state, [text, tone]]) => {
    const count = element("span", { class: "number" });
    const button = element("button", {
      type: "button", class: `toggle ${tone}`, "aria-pressed": "false",
      on: { click: () => {
        remember({ state: parameter("state") === state ? "" : state });
        update();
      } },
    }, text, " ", count);
    return { state, button, count };
  });
  node.append(...buttons.map(({ button }) => button));
  return {
    node,
    update(counts) {
      for (const { state, button, count } of buttons) {
        const isChosen = parameter("state") === state;
        count.textContent = number(counts[state] ?? 0);
        button.hidden = !counts[state] && !isChosen;
        button.setAttribute("aria-pressed", String(isChosen));
      }
    },
  };
}

/** Links to the two forms of the list of pods, which keep the filter. */
function switcher(current) {
  const links = [["/", "Table"], ["/map", "Map"]].map(([href, text]) => {
    const keep = (event) => { event.target.href = href + location.search; };
    return element("a", { href, "aria-current": href === current ? "page" : null, on: { click: keep } }, text);
  });
  return element("nav", { class: "switch", "aria-label": "Form" }, links);
}

/** Frame of both forms of the list of pods. */
function podList(form, tableOf, label) {
  const slot = element("div", { class: "slot" });
  const total = element("span", { class: "muted total", role: "status" });
  const states = stateButtons(update);
  const input = filterInput("Filter pods", "Filter: name, address, node:w1, net:storage, ns:blue", update);
  const node = element("div", { class: "list" },
    element("div", { class: "head" }, element("h1", {}, label), total, switcher(form)),
    element("div", { class: "tools" }, input, states.node), slot);
  function update() {
    const all = rows("pods");
    const counts = {};
    for (const pod of all) counts[pod.state] = (counts[pod.state] ?? 0) + 1;
    states.update(counts);
    const state = parameter("state");
    const test = podFilter(parameter("q"));
    const shown = all.filter((pod) => (!state || pod.state === state) && test(pod));
    total.textContent = shown.length === all.length ? `${number(all.length)} pods` : `${number(shown.length)} of ${number(all.length)} pods`;
    const table = tableOf(shown);
    const none = all.length === 0
      ? ["No pod has a network of weft", "A pod appears here when it selects a network in its annotation, or when weft has attached it."]
      : ["No pod matches", "Change the filter, or press Escape in it to see all pods."];
    place(slot, table, shown.length === 0, () => instead("pods", "pods", none));
    if (shown.length) table.set(shown);
  }
  return { title: label, node, update };
}

export function pods() {
  const table = new Table({ label: "Pods", columns: POD_COLUMNS, sort: parameter("sort") || "0", className: "pods", isPure: true, onSort: (sort) => remember({ sort: sort === "0" ? "" : sort }) });
  return podList("/", () => table, "Pods");
}

/** Maximum number of networks in the map. */
const MAP_MAX = 60;

export function map() {
  let table = null;
  let known = "";
  return podList("/map", (shown) => {
    const counts = new Map();
    for (const pod of shown) for (const network of [...pod.if.filter((entry) => !entry[5]).map(([name]) => name), ...pod.missing]) counts.set(network, (counts.get(network) ?? 0) + 1);
    const networks = [...counts].sort((one, other) => other[1] - one[1]).slice(0, MAP_MAX).map(([network]) => network).sort();
    if (table && networks.join(" ") === known) return table;
    known = networks.join(" ");
    const columns = [POD_COLUMNS[0], ...networks.map((network) => ({
      title: network, className: "dot", hint: network,
      value: (pod) => (pod.missing.includes(network) ? 0 : pod.if.some((entry) => entry[0] === network) ? 1 : 2),
      cell: (pod) => {
        if (pod.missing.includes(network)) return element("span", { class: "cell bad", title: `${network}: missing` }, element("span", { class: "hidden" }, "missing"));
        const found = pod.if.find((entry) => entry[0] === network && !entry[5]);
        return found ? element("span", { class: "cell ok", title: `${network}: ${found[1]} ${found[2].join(" ")}` }, element("span", { class: "hidden" }, "attached")) : null;
      },
    }))];
    table = new Table({ label: "Pods and networks", columns, className: "map", isPure: true });
    return table;
  }, "Map of pods and networks");
}

/** List without states: a filter, a table, and what is shown instead. */
function simpleList({ title, table, what, source, none, all, matches, extra }) {
  const slot = element("div", { class: "slot" });
  const total = element("span", { class: "muted total", role: "status" });
  const input = filterInput(`Filter ${what}`, `Filter ${what}`, update);
  const node = element("div", { class: "list" },
    element("div", { class: "head" }, element("h1", {}, title), total),
    element("div", { class: "tools" }, input), slot, extra?.node ?? []);
  function update() {
    const query = parameter("q").toLowerCase();
    const everything = all();
    const shown = everything.filter((row) => matches(row).toLowerCase().includes(query));
    total.textContent = shown.length === everything.length ? number(everything.length) : `${number(shown.length)} of ${number(everything.length)}`;
    place(slot, table, shown.length === 0, () => (everything.length ? empty("Nothing matches", "Change the filter, or press Escape in it.") : instead(source, what, none)));
    if (shown.length) table.set(shown);
    extra?.update();
  }
  return { title, node, update };
}

export function networks() {
  let usage = new Map();
  const of = (network) => usage.get(network.k.join("/")) ?? { pods: [], missing: 0 };
  const fill = (network) => poolsOf(network)[0];
  const columns = [
    { title: "Network", className: "main", value: (row) => row.k.join("/"), cell: (row) => link([element("span", { class: "namespace" }, `${row.k[0]}/`), row.k[1]], path("network", ...row.k), { class: "name" }) },
    { title: "Plugins", className: "wide", value: (row) => row.chain.join(" "), cell: (row) => (row.chain.length ? row.chain.join(" → ") : muted(row.note ?? "–")) },
    { title: "Addresses from", className: "ipam", value: (row) => row.ipam, cell: (row) => [row.ipam || muted("–"), " ", mono(row.ranges.slice(0, 2).join(" "))] },
    { title: "Pods", className: "number", value: (row) => of(row).pods.length, cell: (row) => number(of(row).pods.length) },
    { title: "Missing", className: "number", value: (row) => of(row).missing, cell: (row) => (of(row).missing ? badge(number(of(row).missing), "bad") : muted("0")) },
    { title: "Pool", className: "pool", value: (row) => fill(row)?.used ?? -1, cell: (row) => (fill(row) ? poolBar(fill(row)) : muted("–")) },
  ];
  const table = new Table({ label: "Networks", columns, className: "networks" });
  return simpleList({
    title: "Networks", table, what: "networks", source: "networks",
    none: ["No NetworkAttachmentDefinition exists", "Create one, and select it in the annotation of a pod."],
    all: () => { usage = podsByNetwork(); return rows("networks"); },
    matches: (row) => `${row.k.join("/")} ${row.chain.join(" ")} ${row.ipam} ${row.ranges.join(" ")}`,
  });
}

/** Returns all nodes: those that report, and those that only have pods. */
export function allNodes() {
  const all = new Map(rows("nodes").map((row) => [row.k[1], { ...row, pods: 0, missing: 0 }]));
  for (const pod of rows("pods")) {
    if (!pod.node) continue;
    if (!all.has(pod.node)) all.set(pod.node, { k: ["", pod.node], pods: 0, missing: 0, isSilent: true });
    const node = all.get(pod.node);
    node.pods += 1;
    if (pod.failure) node.missing += 1;
  }
  return [...all.values()];
}

const PLUGINS = { Current: "ok", Different: "wait", Missing: "bad", Unknown: "off" };

export function pluginBadge(row) {
  return row.plugin ? badge(row.plugin, PLUGINS[row.plugin] ?? "off") : muted("–");
}

export function nodes() {
  const columns = [
    { title: "Node", className: "main", value: (row) => row.k[1], cell: (row) => link(row.k[1], path("node", row.k[1]), { class: "name" }) },
    { title: "Agent", className: "version", value: (row) => row.version ?? "", cell: (row) => row.version ?? muted("no report") },
    { title: "Plugin file", className: "state", value: (row) => row.plugin ?? "", cell: pluginBadge },
    { title: "Pods", className: "number", value: (row) => row.pods, cell: (row) => number(row.pods) },
    { title: "Missing", className: "number", hint: "Pods that fail", value: (row) => row.missing, cell: (row) => (row.missing ? badge(number(row.missing), "bad") : muted("0")) },
    { title: "Failed calls", className: "number", hint: "In the hour before the report", value: (row) => row.failed ?? 0, cell: (row) => (row.failed ? badge(number(row.failed), "bad") : muted(row.isSilent ? "–" : "0")) },
    { title: "Reported", className: "time", value: (row) => row.at ?? "", cell: (row) => (row.at ? ago(row.at) : muted("–")) },
  ];
  const table = new Table({ label: "Nodes", columns, className: "nodes" });
  return simpleList({
    title: "Nodes", table, what: "nodes", source: "nodes", all: allNodes, matches: (row) => `${row.k[1]} ${row.version ?? ""} ${row.plugin ?? ""}`,
    none: ["No node has reported", "The agent of each node writes a WeftNode after it has started."],
  });
}

/** Returns one row for each node of each pool. */
function blockRows() {
  const all = new Map();
  for (const block of rows("blocks")) {
    const id = key(block.pool, block.node);
    if (!all.has(id)) all.set(id, { k: [block.pool, block.node || "free"], pool: block.pool, node: block.node, blocks: 0, single: 0, claims: 0, ranges: [] });
    const row = all.get(id);
    if (/\/(32|128)$/.test(block.range)) row.single += 1;
    else row.blocks += 1;
    if (block.claim) row.claims += 1;
    if (row.ranges.length < 4) row.ranges.push(block.range);
  }
  for (const row of all.values()) {
    const report = store.tables.nodes.get(key("", row.node));
    [, row.held, row.free] = report?.pools.find(([pool]) => pool === row.pool || pool.startsWith(`${row.pool}@`)) ?? [];
  }
  return [...all.values()];
}

/** Returns the number of leased blocks of a pool; without the IPAM controller, counted from the blocks. */
function blocksOf(pool) {
  return pool.leased ?? rows("blocks").filter((block) => block.pool === pool.k[1] && block.node && !/\/(32|128)$/.test(block.range)).length;
}

export function addresses() {
  const poolColumns = [
    { title: "Pool", className: "main", value: (row) => row.k[1], cell: (row) => element("span", { class: "name" }, row.k[1]) },
    { title: "Range", className: "mono range", value: (row) => row.range, cell: (row) => row.range },
    { title: "Used", className: "pool", value: (row) => row.used ?? -1, cell: poolBar },
    { title: "Leased to nodes", className: "pool", value: (row) => row.percent ?? -1, cell: (row) => (row.percent === null ? uncounted() : bar(row.percent, 100, `${row.percent} %`)) },
    { title: "Blocks", className: "number", value: (row) => blocksOf(row), cell: (row) => `${number(blocksOf(row))} of ${row.blocks ? number(row.blocks) : "–"}` },
    { title: "Nodes", className: "number", value: (row) => row.nodes ?? -1, cell: (row) => (row.nodes === null ? uncounted() : number(row.nodes)) },
  ];
  const blockColumns = [
    { title: "Node", className: "main", value: (row) => row.node, cell: (row) => (row.node ? link(row.node, path("node", row.node), { class: "name" }) : muted("free")) },
    { title: "Pool", className: "version", value: (row) => row.pool, cell: (row) => row.pool },
    { title: "Blocks", className: "number", value: (row) => row.blocks, cell: (row) => number(row.blocks) },
    { title: "Single", className: "number", hint: "Single addresses", value: (row) => row.single, cell: (row) => number(row.single) },
    { title: "Held", className: "pool", hint: "Addresses that pods of the node hold", value: (row) => row.held ?? -1, cell: (row) => (row.held === undefined ? muted("–") : bar(row.held, row.held + row.free, `${number(row.held)} of ${number(row.held + row.free)}`)) },
    { title: "Ranges", className: "wide mono", cell: (row) => row.ranges.join(" ") },
  ];
  const blockTable = new Table({ label: "Blocks by node", columns: blockColumns, sort: "1", className: "blocks" });
  const slot = element("div", { class: "slot" });
  const extra = {
    node: [element("h2", {}, "Blocks by node"), slot],
    update() {
      const all = blockRows();
      place(slot, blockTable, all.length === 0, () => instead("blocks", "blocks", ["No node leases a block", "The first pod of a network leases one for its node."]));
      if (all.length) blockTable.set(all);
    },
  };
  const table = new Table({ label: "Pools", columns: poolColumns, className: "pools" });
  return simpleList({
    title: "Addresses", table, what: "pools", source: "pools", all: () => rows("pools"), matches: (row) => `${row.k[1]} ${row.range} ${row.space}`,
    none: ["No pool exists", "The first pod of a network with weft-ipam creates the pool of its range."], extra,
  });
}

/** Returns the failures: pods that fail now first, then other objects and pods that failed, each once; newest first. */
export function allFailures() {
  const all = new Map();
  for (const pod of rows("pods")) {
    if (!pod.failure) continue;
    const { at, reason, note, networks, count } = pod.failure;
    all.set(`Pod/${pod.k.join("/")}`, { k: pod.k, at, kind: "Pod", namespace: pod.k[0], name: pod.k[1], reason, note, hint: pod.failure.hint, networks, count, now: pod.state, isFailing: true });
  }
  for (const event of rows("events")) {
    if (!event.bad) continue;
    const id = `${event.kind}/${event.k[0]}/${event.of}`;
    const known = all.get(id);
    if (known?.isFailing) continue;
    const at = event.at ?? "";
    const row = known ?? { k: [event.kind, event.k[0], event.of], at: "", kind: event.kind, namespace: event.k[0], name: event.of, count: 0, hint: "", networks: [], now: stateNow(event), isFailing: false };
    row.count += event.count;
    if (at >= row.at) Object.assign(row, { at, reason: event.reason, note: event.note });
    all.set(id, row);
  }
  return [...all.values()];
}

/** State of an Event's pod now: empty if it is no pod, or if it cannot be known. */
function stateNow(event) {
  if (event.kind !== "Pod") return "";
  const pod = podOf(event.k[0], event.of);
  return pod ? pod.state : store.viewer?.may.pods === true ? "deleted" : "";
}

/** Number of pods that fail now. */
export function openFailures() {
  return rows("pods").filter((pod) => pod.failure).length;
}

export function failures() {
  const object = (row) => (row.kind === "Pod" ? podLink(row.namespace, row.name) : element("span", { class: "name" }, `${row.kind} ${row.namespace}/${row.name}`));
  const columns = [
    // Failing pods first, then by time: the digits of a time sort as text.
    { title: "State", className: "state", value: (row) => `${row.isFailing ? 1 : 0} ${row.at}`, cell: (row) => (row.now ? stateBadge(row.now) : muted("–")) },
    { title: "Object", className: "main", value: (row) => `${row.namespace}/${row.name}`, cell: object },
    { title: "Network", className: "home", value: (row) => row.networks.join(" "), cell: (row) => row.networks.join(" ") || muted("–") },
    { title: "Reason", className: "reason", value: (row) => row.reason, cell: (row) => row.reason },
    { title: "Message", className: "wide", cell: (row) => [row.note, row.hint ? element("code", { class: "hint" }, row.hint) : null] },
    { title: "Times", className: "number", value: (row) => row.count, cell: (row) => number(row.count) },
    { title: "Last", className: "time", value: (row) => row.at, cell: (row) => (row.at ? ago(row.at) : muted("now")) },
  ];
  const table = new Table({ label: "Failures", columns, sort: "-0", className: "failures", isFlowing: true });
  return simpleList({
    title: "Failures", table, what: "failures", source: "events", all: allFailures, matches: (row) => `${row.namespace}/${row.name} ${row.networks.join(" ")} ${row.reason} ${row.note} ${row.now}`,
    none: ["No failure is known", "weft has reported none in Events of the last hour, and every pod has its networks."],
  });
}
