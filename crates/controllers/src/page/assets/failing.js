// Failing pods: joins the rows of pods with the newest Event of each pod. Retries are counted, not listed.

/** Returns what the Events say about each pod, by NAMESPACE/NAME. */
function byPod(events) {
  const all = new Map();
  for (const event of events) {
    if (event.kind !== "Pod" || !event.effect) continue;
    const pod = `${event.k[0]}/${event.of}`;
    const known = all.get(pod) ?? { failure: null, works: "", count: 0 };
    all.set(pod, known);
    const at = event.at ?? "";
    if (event.effect === "works") {
      if (at > known.works) known.works = at;
      continue;
    }
    known.count += event.count;
    if (!known.failure || at > (known.failure.at ?? "")) known.failure = event;
  }
  return all;
}

/** Whether a text has a name as a word of its own. */
function names(text, name) {
  const isPart = (letter) => letter !== undefined && /[\p{L}\p{N}-]/u.test(letter);
  for (let at = text.indexOf(name); name && at >= 0; at = text.indexOf(name, at + 1)) {
    if (!isPart(text[at - 1]) && !isPart(text[at + name.length])) return true;
  }
  return false;
}

/** Returns the networks that a message names, by name or by interface; all missing ones if it names none. */
function networksIn(note, pod) {
  const named = pod.missing.filter((network, index) => names(note, network) || names(note, pod.wanted[index] ?? ""));
  return named.length ? named : pod.missing;
}

/** Returns the next step for a failure, as `weft list --failed` has it. */
export function hint(pod, reason, note) {
  const name = pod.k.join("/");
  const [, rule] = /\[([a-z0-9-]+)\]$/.exec(note) ?? [];
  if (reason === "NoNetworkFound") return "kubectl get network-attachment-definitions -A";
  if (rule) return `weft lint --explain ${rule}`;
  if (reason === "NetworksMissing" || reason === "InterfaceDrifted") return "recreate the pod";
  if (reason === "AnnotationInvalid") return `kubectl get pod -n ${pod.k[0]} ${pod.k[1]} -o yaml | weft lint -`;
  if (reason === "DetachFailed") return `sudo weft detach ${name} on node ${pod.node}`;
  return `weft history ${name} on node ${pod.node}`;
}

/** Returns a row whose `failure` says why the pod fails, or the row itself if it does not fail. */
function judged(pod, said) {
  if (pod.state === "ended") return pod;
  const newest = said?.failure && (said.failure.at ?? "") > said.works ? said.failure : null;
  const counts = { count: said?.count ?? 0, at: newest?.at ?? "" };
  const of = (reason, note) => ({ reason, note, hint: hint(pod, reason, note), networks: networksIn(note, pod), ...counts });
  if (newest && (!pod.ready || pod.state === "missing" || newest.reason === "InterfaceDrifted")) {
    const failure = of(newest.reason, newest.note);
    return { ...pod, state: pod.state === "waiting" || pod.state === "attached" ? "failing" : pod.state, failure };
  }
  if (pod.state === "invalid") return { ...pod, failure: of("AnnotationInvalid", pod.fault) };
  if (pod.state === "missing") return { ...pod, failure: of("NetworksMissing", `runs without ${pod.missing.join(", ")}`) };
  return pod;
}

/** Rows of the last call by pod: a row that has not changed stays the same object, so that it is not rendered again. */
let before = new Map();

/** Returns the rows of the pods, those that fail with their failure. */
export function judge(pods, events) {
  const said = byPod(events);
  const now = new Map();
  for (const [key, pod] of pods) {
    const row = judged(pod, said.get(key));
    const old = before.get(key);
    const isSame = old?.pod === pod && JSON.stringify(old.row.failure) === JSON.stringify(row.failure) && old.row.state === row.state;
    now.set(key, isSame ? old : { pod, row });
  }
  before = now;
  return new Map([...now].map(([key, { row }]) => [key, row]));
}
