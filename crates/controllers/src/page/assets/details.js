// One pod, one network, one node. Each function returns `{ title, node, update }`.

import { ago, badge, element, empty, facts, link, networkLink, number, path, podLink, stateBadge } from "./elements.js";
import { key, podOf, rows, store } from "./store.js";
import { Table } from "./table.js";
import { allNodes, interfaces, pluginBadge, podsByNetwork, poolBar, poolsOf } from "./views.js";

const mono = (text) => element("span", { class: "mono" }, text);
const muted = (text) => element("span", { class: "muted" }, text);

function heading(back, kind, name) {
  return element("div", { class: "head" },
    element("nav", { class: "crumb", "aria-label": "Path" }, element("a", { href: back[0] }, back[1]), element("span", { "aria-hidden": "true" }, "›")),
    element("h1", {}, element("span", { class: "hidden" }, `${kind} `), name));
}

/** Returns what is shown for an object without a row: it does not exist, or the viewer may not see it. */
function absent(kind, name, resource) {
  if (!store.isReady) return element("div", { class: "empty", role: "status" }, element("p", { class: "title loading" }, `Loading ${name}…`));
  return empty(`${kind} ${name} is not shown`, `It does not exist, has no network of weft, or your account may not list ${resource} there.`);
}

function section(title, ...content) {
  return element("section", {}, element("h2", {}, title), content);
}

/** Returns whether something has changed since the last call. Texts that are selected survive until then. */
function changeDetector() {
  let known = "";
  return (...values) => {
    // Ages are rendered again from time to time.
    const now = JSON.stringify([store.isReady, store.viewer?.may, Math.floor(Date.now() / 20000), values]);
    const isChanged = now !== known;
    known = now;
    return isChanged;
  };
}

/** Table without scrolling, for few rows. */
function plainTable(label, titles, all) {
  return element("div", { class: "plain-table", tabindex: "0", role: "region", "aria-label": label },
    element("table", { "aria-label": label },
      element("thead", {}, element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, all.map((cells) => element("tr", {}, cells.map((cell, index) => element("td", { "data-title": titles[index] }, cell)))))));
}

/** Returns whether the newest check of a pod found drift: its Event is newer than the one about the repair. */
function drift(events) {
  const newest = (reason) => events.filter((event) => event.reason === reason).map((event) => event.at ?? "").sort().at(-1) ?? "";
  const [drifted, restored] = [newest("InterfaceDrifted"), newest("InterfaceRestored")];
  return drifted && drifted > restored ? events.find((event) => event.reason === "InterfaceDrifted" && event.at === drifted) : null;
}

function timeline(events) {
  const sorted = [...events].sort((one, other) => (one.at ?? "").localeCompare(other.at ?? ""));
  return element("ol", { class: "timeline" }, sorted.map((event) =>
    element("li", { class: event.bad ? "bad" : "ok" },
      element("p", { class: "what" }, element("strong", {}, event.reason), " ", ago(event.at), event.count > 1 ? muted(` · ${number(event.count)} times`) : null, event.node ? muted(` · ${event.node}`) : null),
      element("p", { class: "note" }, event.note))));
}

export function pod(namespace, name) {
  const content = element("div");
  const title = `${namespace}/${name}`;
  const isChanged = changeDetector();
  function update() {
    const row = podOf(namespace, name);
    const events = rows("events").filter((event) => event.k[0] === namespace && event.kind === "Pod" && event.of === name);
    if (!isChanged(row, events)) return;
    if (!row) {
      content.replaceChildren(absent("Pod", title, "pods"));
      return;
    }
    const drifted = drift(events);
    const all = interfaces(row).map(({ network, name: own, ips, mac, mtu, isDefault }) =>
      [mono(own || "–"), [networkLink(network), isDefault ? muted(" default") : null], ips.length ? ips.map((ip) => element("span", { class: "mono address" }, ip)) : muted("–"), mono(mac || "–"), mtu ? number(mtu) : muted("–")]);
    const problems = [
      row.failure ? `${row.failure.reason}: ${row.failure.note}` : row.fault,
      row.failure ? `Next: ${row.failure.hint}` : null,
      ...(row.missing.length && row.state !== "ended" ? [`${row.state === "waiting" || row.state === "failing" ? "Waits for" : "Runs without"} ${row.missing.join(", ")}`] : []),
      drifted && row.failure?.reason !== "InterfaceDrifted" ? `Drift: ${drifted.note}` : null,
    ].filter(Boolean);
    const mayEvents = store.viewer?.may.events;
    content.replaceChildren(
      facts(["State", stateBadge(row.state)], ["Node", row.node ? link(row.node, path("node", row.node)) : null], ["Phase", row.phase + (row.leaving ? ", is being deleted" : "")],
        ["Networks", number(row.if.filter((entry) => !entry[5]).length)], ["Drift", drifted ? badge("Drifted", "bad") : null]),
      problems.length ? element("ul", { class: "problems" }, problems.map((text) => element("li", {}, text))) : "",
      section("Interfaces", all.length ? plainTable(`Interfaces of ${title}`, ["Interface", "Network", "Addresses", "MAC", "MTU"], all) : muted("weft has written no network-status yet.")),
      section("Timeline", events.length ? timeline(events) : muted(mayEvents === 0 ? "Your account may not list events." : "The cluster has no Event of weft about this pod: Events are kept for an hour.")),
      row.node ? element("p", { class: "hint" }, "Each stage of its last ADD, on node ", row.node, ": ", element("code", {}, `weft history ${title} --timeline`)) : "",
    );
  }
  return { title, node: element("div", { class: "detail" }, heading(["/", "Pods"], "Pod", title), content), update };
}

const podColumns = (network) => {
  const of = (row) => row.if.filter((entry) => (network ? entry[0] === network : !entry[5]));
  return [
    { title: "Pod", className: "main", value: (row) => row.k.join("/"), cell: (row) => podLink(...row.k) },
    { title: "State", className: "state", value: (row) => row.state, cell: (row) => stateBadge(row.state) },
    network
      ? { title: "Node", className: "node", value: (row) => row.node, cell: (row) => link(row.node || "–", row.node ? path("node", row.node) : null, { class: "plain" }) }
      : { title: "Networks", className: "node", value: (row) => of(row).length, cell: (row) => of(row).map((entry) => entry[0]).join(", ") || "–" },
    { title: "Interface", className: "mono version", value: (row) => of(row)[0]?.[1] ?? "", cell: (row) => of(row).map((entry) => entry[1]).join(" ") || "–" },
    { title: "Addresses", className: "wide mono", value: (row) => of(row)[0]?.[2][0] ?? "", cell: (row) => of(row).flatMap((entry) => entry[2]).join(" ") || "–" },
  ];
};

function configuration(row) {
  if (!row.config) return muted(row.bytes ? `The configuration has ${number(row.bytes)} bytes: kubectl shows it.` : (row.note ?? "none"));
  let text = row.config;
  try {
    text = JSON.stringify(JSON.parse(row.config), null, 2);
  } catch {
    // It is shown as written.
  }
  return element("pre", { tabindex: "0", role: "region", "aria-label": "Configuration" }, text);
}

export function network(namespace, name) {
  const title = `${namespace}/${name}`;
  const [content, below, slot] = [element("div"), element("div"), element("div", { class: "slot inner" })];
  const table = new Table({ label: `Pods of ${title}`, columns: podColumns(title), className: "pods", isPure: true });
  const isChanged = changeDetector();
  function update() {
    const row = store.tables.networks.get(key(namespace, name));
    const usage = podsByNetwork().get(title) ?? { pods: [], missing: 0, addresses: 0 };
    const lacking = rows("pods").filter((other) => other.state !== "ended" && other.missing.includes(title));
    if (!row && usage.pods.length + lacking.length === 0) {
      slot.replaceChildren();
      below.replaceChildren();
      isChanged("absent");
      content.replaceChildren(absent("Network", title, "network-attachment-definitions"));
      return;
    }
    const pools = row ? poolsOf(row) : [];
    const policies = rows("policies").filter((policy) => policy.for.split(",").map((text) => text.trim()).some((text) => text === title || (text === name && policy.k[0] === namespace)));
    const shown = [...new Set([...usage.pods, ...lacking])];
    if (shown.length) table.set(shown);
    if (!isChanged(row, pools, policies, usage.missing, usage.addresses, shown.length)) return;
    content.replaceChildren(
      facts(["Plugins", row ? row.chain.join(" → ") || row.note : muted("your account may not see the definition")], ["Addresses from", row?.ipam], ["Ranges", row?.ranges.length ? mono(row.ranges.join(" ")) : null],
        ["Pods", number(usage.pods.length)], ["Missing in", usage.missing ? badge(`${number(usage.missing)} ${usage.missing === 1 ? "pod" : "pods"}`, "bad") : null], ["Addresses", number(usage.addresses)],
        ...pools.map((pool) => [`Pool ${pool.k[1]}`, poolBar(pool)])),
      element("h2", {}, "Pods"));
    if (slot.firstChild !== table.node || shown.length === 0) slot.replaceChildren(shown.length ? table.node : muted("No pod that you may see uses the network."));
    below.replaceChildren(
      policies.length ? section("Policies", plainTable("Policies", ["Policy", "Pods", "Ingress rules", "Egress rules"], policies.map((policy) =>
        [policy.k.join("/"), mono(policy.pods), policy.ingress ?? "–", policy.egress ?? "–"]))) : "",
      row ? section("Configuration", configuration(row)) : "");
  }
  return { title, node: element("div", { class: "detail" }, heading(["/networks", "Networks"], "Network", title), content, slot, below), update };
}

export function node(name) {
  const [content, slot] = [element("div"), element("div", { class: "slot inner" })];
  const table = new Table({ label: `Pods of node ${name}`, columns: podColumns(null), className: "pods", isPure: true });
  const isChanged = changeDetector();
  function update() {
    const row = allNodes().find((other) => other.k[1] === name);
    if (!row) {
      slot.replaceChildren();
      isChanged("absent");
      content.replaceChildren(absent("Node", name, "weftnodes.weft.dev"));
      return;
    }
    const shown = rows("pods").filter((other) => other.node === name);
    if (shown.length) table.set(shown);
    if (!isChanged(row, shown.length)) return;
    const [time, verb, failed, why] = row.last ?? [];
    const [namespace, pod_] = (failed ?? "/").split("/");
    content.replaceChildren(
      row.isSilent ? element("ul", { class: "problems" }, element("li", {}, "The node has not reported, or your account may not list weftnodes.weft.dev.")) : "",
      facts(["Agent", row.version], ["Commit", row.commit ? mono(row.commit.slice(0, 12)) : null], ["Plugin file", row.plugin ? pluginBadge(row) : null], ["Default network", row.default],
        ["Sandboxes", row.sandboxes === undefined ? null : number(row.sandboxes)], ["Incomplete", row.incomplete ? badge(number(row.incomplete), "bad") : null],
        ["Failed calls", row.failed ? badge(`${number(row.failed)} in an hour`, "bad") : row.isSilent ? null : "0"], ["Reported", row.at ? ago(row.at) : null]),
      row.last ? section("Last failure", element("p", { class: "what" }, element("strong", {}, verb), " ", podLink(namespace, pod_), " ", ago(time)), element("p", { class: "note" }, why)) : "",
      row.pools?.length ? section("Addresses", plainTable("Addresses", ["Pool", "Held", "Free"], row.pools.map(([pool, held, free]) => [pool, number(held), number(free)]))) : "",
      element("h2", {}, "Pods"));
    if (slot.firstChild !== table.node || shown.length === 0) slot.replaceChildren(shown.length ? table.node : muted("No pod that you may see runs on the node."));
  }
  return { title: name, node: element("div", { class: "detail" }, heading(["/nodes", "Nodes"], "Node", name), content, slot), update };
}
