"use strict";
// Shows the router, and only reads: every request is a GET of the API (docs/api.md).

const PERIOD_MS = 2000;
// Requests whose last reply was empty, such as /v1/sas without IPsec, are repeated only once in so many updates.
const EMPTY_EVERY = 5;
const TIMEOUT_MS = 6000;
const HISTORY = 60;
const ROUTES = 50;
const FLOWS = 50;
const COLORS = ["#2463c4", "#d9822b", "#1a9e77", "#b3479d", "#8a8f00", "#d64545", "#5f6c7b", "#00a0b0"];
const ACTIONS = {
  "forward": "forwarded", "host": "given to Linux", "resolve": "held until the MAC address of the neighbor is known",
  "blackhole": "dropped (blackhole)", "unreachable": "dropped (unreachable)", "prohibit": "dropped (prohibit)",
  "group": "distributed among several next hops", "no-route": "dropped: there is no route",
};

const $ = id => document.getElementById(id);
let before = null, now = null, round = 0;
const histories = new Map(), colors = new Map(), replies = new Map();

// ---- Numbers

function short(value, space = "") {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  let prefix = 0;
  while (value >= 999.5 && prefix < 4) { value /= 1000; prefix++; }
  const digits = value >= 99.5 || value === 0 || (prefix === 0 && value >= 10) ? 0 : value >= 9.95 || prefix === 0 ? 1 : 2;
  return value.toFixed(digits) + space + ["", "k", "M", "G", "T"][prefix];
}
const bitRate = value => value === null || value === undefined ? "-" : short(value, " ") + "bit/s";
const whole = value => (value || 0).toLocaleString("en");
const lossy = (value, text = short(value)) => ({ text, bad: value > 0 });

// Counters of a sample by name; a rate is their difference between two samples over the time in between.
function counters(sample) {
  const all = new Map();
  for (const drop of dropsOf(sample.drops)) all.set(drop.key, drop.frames);
  for (const cause of sample.drops.left_to_linux || []) all.set("left/" + cause.reason, cause.frames);
  for (const port of sample.ports.ports) {
    all.set("port/" + port.name + "/dropped", port.account.dropped);
    all.set("port/" + port.name + "/lost", lostAt(port));
  }
  for (const worker of sample.workers.workers) {
    for (const key of ["moves", "sleeps", "busy_ns"])
      if (worker[key] !== undefined) all.set("worker/" + worker.worker + "/" + key, worker[key]);
    for (const app of worker.apps || []) all.set("worker/" + worker.worker + "/app/" + app.app, app.ns);
  }
  for (const link of sample.links.links) {
    // Workers have a link of the same name each.
    for (const key of ["tx", "tx_bytes", "dropped"]) {
      const name = "link/" + link.name + "/" + key;
      all.set(name, (all.get(name) || 0) + link[key]);
    }
  }
  const flows = sample.status.flows;
  all.set("flows/learned", flows.learned).set("flows/ended", sum(flows.ended)).set("flows/not_learned", sum(flows.not_learned));
  for (const hook of sample.hooks.hooks)
    for (const key of ["frames", "errors"]) all.set("hook/" + hook.name + "/" + key, hook[key]);
  for (const sa of sample.sas.sas)
    for (const key of ["packets", "bytes", "failures"]) all.set(saKey(sa) + key, sa[key]);
  for (const link of sample.cluster.links) {
    const name = "fabric/" + link.device + "/";
    all.set(name + "sent", link.sent).set(name + "sent_bytes", link.sent_bytes);
    all.set(name + "received", link.account.received).set(name + "received_bytes", link.account.received_bytes);
  }
  return all;
}
const saKey = sa => "sa/" + [sa.direction, sa.destination, sa.spi].join(" ") + "/";
const sum = values => Object.values(values || {}).reduce((total, value) => total + value, 0);
const lostAt = port => sum(port.device_counters) + (port.rx ? port.rx.dropped + port.rx.errors : 0);
function dropsOf(reply) {
  const ours = reply.drops.map(drop => ({ ...drop, by: "brickmoon", where: drop.at.map(at => at.app + " " + whole(at.frames)) }));
  const linux = (reply.by_linux || []).map(drop => ({
    ...drop, by: "Linux", where: drop.at.map(at => at.port + " " + at.kernel_reason + " " + whole(at.frames)),
  }));
  return ours.concat(linux).map(drop => ({ ...drop, key: "drop/" + drop.by + "/" + drop.reason }));
}
function rate(key) {
  if (!before || !before.counters.has(key) || !now.counters.has(key)) return null;
  const more = now.counters.get(key) - before.counters.get(key);
  const seconds = (now.at_ms - before.at_ms) / 1000;
  // A counter that has become smaller belongs to something new of the same name.
  return more < 0 || seconds <= 0 ? null : more / seconds;
}
const bits = key => rate(key) === null ? null : 8 * rate(key);
function remember(key, value) {
  const values = histories.get(key) || new Array(Math.min(round, HISTORY)).fill(0);
  values.push(value || 0);
  if (values.length > HISTORY) values.shift();
  histories.set(key, values);
}

// ---- Elements

function make(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function draw(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function label(x, y, text, anchor = "start") {
  return draw("text", { x, y, "text-anchor": anchor }, text);
}
function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
// Fills a table. Cells are strings, or objects with `text`, `bad`, `title`, `color`, `history`. Rows are changed in
// place, so that text in them can be selected, and updates cost little.
function table(id, columns, rows, empty) {
  const place = $(id);
  if (!rows.length) {
    place.replaceChildren(empty ? make("span", { class: "dim" }, empty) : "");
    return;
  }
  let body = place.querySelector("tbody");
  if (!body) {
    const head = columns.map(([name, number]) => make("th", number ? { class: "number" } : {}, name));
    body = make("tbody", {});
    place.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)), body));
  }
  while (body.rows.length > rows.length) body.lastChild.remove();
  while (body.rows.length < rows.length)
    body.append(make("tr", {}, ...columns.map(([, number]) => make("td", number ? { class: "number" } : {}))));
  rows.forEach((row, at) => row.forEach((cell, column) => fill(body.rows[at].cells[column], cell)));
}
function fill(td, cell) {
  if (cell === null || typeof cell !== "object") return set(td, String(cell));
  td.classList.toggle("bad", Boolean(cell.bad));
  if (cell.title !== undefined && td.title !== cell.title) td.title = cell.title;
  if (cell.history) return history(td, cell.history);
  if (cell.color === undefined) return set(td, String(cell.text));
  let key = td.querySelector(".key");
  if (!key || key.nextSibling.data !== cell.text) {
    key = make("span", { class: "key" });
    td.replaceChildren(key, cell.text);
  }
  key.style.background = cell.color;
}
function history(td, values) {
  const width = 120, height = 20, most = Math.max(...values, 1);
  const x = at => ((at + HISTORY - values.length) * width / (HISTORY - 1)).toFixed(1);
  const line = values.map((value, at) => (at ? "L" : "M") + x(at) + " " + (height - 2 - value / most * (height - 4)).toFixed(1));
  let path = td.querySelector("path");
  if (!path) {
    path = draw("path", { class: "history" });
    td.replaceChildren(draw("svg", { width, height, role: "img", "aria-label": "the last two minutes" }, path));
  }
  path.setAttribute("d", line.join(""));
}

// ---- Sections

function showStatus(status) {
  const silent = status.silent_threads, ready = status.ready && !silent;
  set($("state"), ready ? "ready" : silent ? silent + " threads make no progress" : "not ready");
  $("state").className = ready ? "good" : "bad";
  const hours = Math.floor(status.uptime_s / 3600), minutes = Math.floor(status.uptime_s / 60) % 60;
  set($("about"), [
    status.version, "process " + status.pid, "up " + hours + " h " + minutes + " min", "path " + status.path,
    whole(status.routes_ipv4) + " IPv4 and " + whole(status.routes_ipv6) + " IPv6 routes",
    status.mirror.synced ? "in sync with Linux" : "behind Linux",
  ].join(", "));
  $("notes-card").hidden = !status.notes.length;
  $("notes").replaceChildren(...status.notes.map(note => make("div", {}, note)));
}
function showPorts(ports) {
  const columns = [["port"], ["state"], ["rx packets/s", 1], ["rx bit/s", 1], ["tx packets/s", 1], ["tx bit/s", 1],
    ["dropped/s", 1], ["lost/s", 1], ["rx, 2 min"], ["path"]];
  table("ports", columns, ports.map(port => {
    const state = port.state !== "attached" ? port.state : !port.up ? "down" : port.active ? "up" : "left to Linux";
    const path = port.attach ? port.path + ", " + port.attach : port.path + ", " + port.mode;
    const of = (direction, key) => short((port[direction] || {})[key]);
    return [
      port.name, { text: state, bad: state !== "up", title: port.state_reason || "" },
      of("rx", "packets_per_s"), of("rx", "bits_per_s"), of("tx", "packets_per_s"), of("tx", "bits_per_s"),
      lossy(rate("port/" + port.name + "/dropped")), lossy(rate("port/" + port.name + "/lost")),
      { history: histories.get("port/" + port.name) || [] }, { text: path, title: port.path_reason || port.mode_reason || "" },
    ];
  }), "no ports: add some to the configuration, then run `brickmoon reload`");
}
function showDrops(reply) {
  const drops = dropsOf(reply).map(drop => ({ ...drop, per_s: rate(drop.key) }));
  drops.sort((a, b) => (b.per_s || 0) - (a.per_s || 0) || b.frames - a.frames);
  for (const { key } of drops) if (!colors.has(key)) colors.set(key, COLORS[colors.size % COLORS.length]);
  chart(drops.map(drop => drop.key).sort());
  table("drops", [["reason"], ["by"], ["packets/s", 1], ["packets", 1], ["meaning"], ["where"]], drops.map(drop => [
    { text: drop.reason, color: colors.get(drop.key) }, drop.by, lossy(drop.per_s), whole(drop.frames), drop.meaning,
    { text: drop.where.slice(0, 2).join(", ") + (drop.where.length > 2 ? ", .." : ""), title: drop.where.join("\n") },
  ]), "nothing was dropped" + (reply.by_linux_unknown ? " by brickmoon; drops of Linux are unknown: " + reply.by_linux_unknown : ""));
  const left = reply.left_to_linux || [];
  $("left-title").hidden = !left.length;
  table("left", [["cause"], ["packets/s", 1], ["packets", 1], ["meaning"]], left.map(cause =>
    [cause.reason, short(rate("left/" + cause.reason)), whole(cause.frames), cause.meaning]));
}
// Drops over time: an area for each reason, on top of each other.
function chart(keys) {
  const width = $("drop-chart").clientWidth, height = 90, all = keys.map(key => histories.get(key) || []);
  const length = Math.max(0, ...all.map(values => values.length));
  const value = (values, at) => values[at - (length - values.length)] || 0;
  const most = Math.max(0, ...Array.from({ length }, (_, at) => all.reduce((total, values) => total + value(values, at), 0)));
  if (!most || length < 2) return $("drop-chart").replaceChildren();
  const below = new Array(length).fill(0);
  const x = at => ((at + HISTORY - length) * width / (HISTORY - 1)).toFixed(1);
  const y = total => (height - total / most * (height - 14)).toFixed(1);
  const svg = draw("svg", { width, height: height + 14, role: "img", "aria-label": "drops over the last two minutes" });
  all.forEach((values, index) => {
    const low = below.map((total, at) => "L" + x(at) + " " + y(total)).reverse();
    const high = below.map((total, at) => {
      below[at] = total + value(values, at);
      return (at ? "L" : "M") + x(at) + " " + y(below[at]);
    });
    svg.append(draw("path", { d: high.join("") + low.join("") + "Z", fill: colors.get(keys[index]), "fill-opacity": .8 }));
  });
  svg.append(label(0, 10, short(most) + "/s"), label(0, height + 12, "2 min ago"), label(width, height + 12, "now", "end"));
  $("drop-chart").replaceChildren(svg);
}
function showFlowTable(flows) {
  $("flows-card").hidden = !flows.max;
  const use = flows.why_not ? "not in use: " + flows.why_not : "in use for " + flows.families.join(" and ");
  table("flow-table", [["flows", 1], ["room for", 1], ["learned/s", 1], ["ended/s", 1], ["not learned/s", 1], ["use"]], [[
    whole(flows.flows), whole(flows.max), short(rate("flows/learned")), short(rate("flows/ended")), short(rate("flows/not_learned")), use,
  ]]);
}
function showWorkers(workers) {
  $("workers-card").hidden = !workers.length;
  const columns = [["worker"], ["core"], ["state"], ["queues"], ["on packets", 1], ["waiting", 1], ["packets moved/s", 1], ["sleeps/s", 1],
    ["restarts", 1], ["frames free", 1], ["load, 2 min"], ["time by app"]];
  table("workers", columns, workers.map(worker => {
    const name = "worker/" + worker.worker, of = key => rate(name + "/" + key);
    const busy = of("busy_ns") === null ? null : Math.min(100, of("busy_ns") / 1e7);
    const percent = value => value === null ? "-" : value.toFixed(1) + " %";
    return [
      worker.worker, worker.core === undefined ? "any" : worker.core,
      { text: worker.alive ? "running" : "stopped", bad: !worker.alive }, worker.queues.join(" "),
      percent(busy), percent(busy === null ? null : 100 - busy), short(of("moves")), short(of("sleeps")),
      lossy(worker.restarts), whole(worker.frames_free) + " of " + whole(worker.frames), { history: histories.get(name) || [] },
      timeByApp(worker),
    ];
  }));
}
// The apps that take most of a worker's time at present; all of them in the tooltip.
function timeByApp(worker) {
  const times = (worker.apps || []).map(app => [app.app, rate("worker/" + worker.worker + "/app/" + app.app) || 0])
    .filter(([, ns]) => ns > 0).sort(([, one], [, other]) => other - one);
  const total = times.reduce((sum, [, ns]) => sum + ns, 0);
  const shares = times.map(([app, ns]) => app + " " + Math.round(ns * 100 / total) + " %");
  return { text: shares.slice(0, 3).join(", ") || "-", title: shares.join("\n") };
}
// Apps in columns, in the order in which packets pass them. A port is drawn twice: where packets come in, and where they
// go out. So there are no cycles in what the router does by itself.
function showGraph(links, ports) {
  const byName = new Map(links.map(link => [link.name, link]));
  $("graph-card").hidden = !byName.size;
  if (!byName.size) return;
  const isPort = new Set(ports.map(port => port.name)), apps = new Map();
  const app = (name, side) => {
    const id = isPort.has(name) ? name + " " + side : name;
    if (!apps.has(id)) apps.set(id, { id, column: 0, inputs: [], outputs: [] });
    return apps.get(id);
  };
  const edges = [...byName.keys()].map(name => {
    const [from, to] = name.split(" -> ").map(end => end.slice(0, end.lastIndexOf(".")));
    const edge = { name, from: app(from, "rx"), to: app(to, "tx") };
    edge.from.outputs.push(edge);
    edge.to.inputs.push(edge);
    return edge;
  });
  place(apps, edges);
  const nodes = [...apps.values()], width = Math.max(...nodes.map(node => node.x)) + 140, height = Math.max(...nodes.map(node => node.y + node.height)) + 10;
  const svg = draw("svg", { class: "wide", width, height, role: "img", "aria-label": "apps and the links between them" });
  const labels = edges.map(edge => {
    const x1 = edge.from.x + 120, y1 = edge.from.y + 17 + 18 * edge.from.outputs.indexOf(edge);
    const x2 = edge.to.x, y2 = edge.to.y + 17 + 18 * edge.to.inputs.indexOf(edge), bend = Math.max(40, Math.abs(x2 - x1) / 2);
    const packets = rate("link/" + edge.name + "/tx"), full = rate("link/" + edge.name + "/dropped") > 0;
    svg.append(
      draw("path", {
        class: full ? "edge bad" : "edge", "stroke-width": (1 + Math.min(5, Math.log10(1 + (packets || 0)))).toFixed(1),
        d: ["M", x1, y1, "C", x1 + bend, y1, x2 - bend, y2, x2, y2].join(" "),
      }, draw("title", {}, edge.name + (full ? ": full, packets are dropped" : ""))));
    return label(x1 + 6, y1 - 4, short(packets) + "/s, " + bitRate(bits("link/" + edge.name + "/tx_bytes")));
  });
  svg.append(...labels);
  for (const { id, x, y, height } of nodes)
    svg.append(draw("rect", { class: "node", x, y, width: 120, height, rx: 5 }),
      label(x + 60, y + height / 2 + 4, id.length > 18 ? id.slice(0, 17) + "…" : id, "middle"));
  $("graph").replaceChildren(svg);
}
function place(apps, edges) {
  // The longest way from an input, which a cycle among apps must not lengthen for ever.
  for (let pass = 0; pass < Math.min(apps.size, 12); pass++)
    for (const { from, to } of edges) if (from !== to && to.column <= from.column && from.column < 11) to.column = from.column + 1;
  for (const app of apps.values())
    if (!app.inputs.length && !app.id.endsWith(" rx")) app.column = Math.max(0, Math.min(...app.outputs.map(edge => edge.to.column)) - 1);
  const next = [];
  for (const app of apps.values()) {
    app.height = 16 + 18 * Math.max(app.inputs.length, app.outputs.length, 1);
    app.x = 10 + app.column * 260;
    app.y = next[app.column] || 10;
    next[app.column] = app.y + app.height + 14;
  }
}
function showHooks(hooks) {
  $("hooks-card").hidden = !hooks.length;
  const columns = [["hook"], ["stages"], ["state"], ["packets/s", 1], ["cycles/packet", 1], ["budget", 1], ["errors", 1], ["ejections", 1], ["hangs", 1], ["dropped", 1], ["file"]];
  table("hooks", columns, hooks.map(hook => [
    hook.name, hook.stages.join(" "), { text: hook.state, bad: hook.state !== "active" }, short(rate("hook/" + hook.name + "/frames")),
    hook.cycles_per_frame.toFixed(0), hook.budget || "none", lossy(hook.errors, whole(hook.errors)), lossy(hook.ejections, whole(hook.ejections)),
    lossy(hook.hangs, whole(hook.hangs)), whole(sum(hook.drops)), hook.file,
  ]));
  const failed = hooks.filter(hook => hook.last_error);
  $("hook-errors").replaceChildren(...failed.map(hook => make("pre", { class: "bad" }, hook.name + ": " + hook.last_error)));
}
function showSas(sas) {
  $("sas-card").hidden = !sas.length;
  const columns = [["SA"], ["direction"], ["SPI"], ["source"], ["destination"], ["mode"], ["suite"], ["worker", 1], ["packets/s", 1], ["bit/s", 1], ["failures", 1], ["age", 1], ["state"]];
  table("sas", columns, sas.map(sa => [
    sa.name, sa.direction, "0x" + sa.spi.toString(16).padStart(8, "0"), sa.source, sa.destination, sa.mode, sa.suite, sa.worker,
    short(rate(saKey(sa) + "packets")), short(bits(saKey(sa) + "bytes")), lossy(sa.failures, whole(sa.failures)), whole(sa.age_s) + " s",
    { text: sa.state, bad: sa.state !== "valid" },
  ]));
}
function showCluster(cluster) {
  $("cluster-card").hidden = !cluster.members;
  if (!cluster.members) return;
  set($("node"), "node " + cluster.name + ", epoch " + cluster.epoch + ", " + cluster.members + " members, balancing " + cluster.balancing +
    (cluster.drained ? ", drained" : "") + (cluster.store ? ", store " + (cluster.store.connected ? "connected" : cluster.store.trouble || "does not answer") : ""));
  const svg = draw("svg", { viewBox: "0 0 460 300", role: "img", "aria-label": "links to other nodes and their loads" });
  cluster.links.forEach((link, at) => {
    const angle = 2 * Math.PI * at / cluster.links.length - Math.PI / 2;
    const x = 230 + 165 * Math.cos(angle), y = 150 + 115 * Math.sin(angle), name = "fabric/" + link.device + "/";
    const load = (bits(name + "sent_bytes") || 0) + (bits(name + "received_bytes") || 0);
    const text = link.state === "up" ? bitRate(bits(name + "sent_bytes")) + " out, " + bitRate(bits(name + "received_bytes")) + " in" : link.state;
    svg.append(
      draw("line", { class: link.state === "up" ? "edge" : "edge bad", x1: 230, y1: 150, x2: x, y2: y, "stroke-width": 1 + Math.min(6, Math.log10(1 + load) / 2) }),
      draw("circle", { class: "node", cx: x, cy: y, r: 22 }), label(x, y + 4, link.peer, "middle"),
      label(230 + .55 * (x - 230), 150 + .55 * (y - 150) - 4, text, "middle"));
  });
  svg.append(draw("circle", { class: "node", cx: 230, cy: 150, r: 26 }), label(230, 154, cluster.name, "middle"));
  $("map").replaceChildren(svg);
  table("fabric", [["link"], ["peer"], ["state"], ["sent/s", 1], ["bit/s", 1], ["received/s", 1], ["bit/s", 1], ["lost", 1], ["round trip", 1]], cluster.links.map(link => {
    const name = "fabric/" + link.device + "/", lost = (link.from_peer || {}).lost;
    return [
      link.device, link.peer + (link.drained ? ", drained" : ""), { text: link.state, bad: link.state !== "up", title: link.trouble || "" },
      short(rate(name + "sent")), short(bits(name + "sent_bytes")), short(rate(name + "received")), short(bits(name + "received_bytes")),
      lossy(lost, lost === undefined ? "-" : whole(lost)), link.round_trip_us === undefined ? "-" : whole(link.round_trip_us) + " us",
    ];
  }));
}

// ---- Routes, on request only: a full table has a million

let shown = [], next = null;
const hop = hop => [hop.gateway && "via " + hop.gateway, "dev " + hop.interface, hop.mac && "lladdr " + hop.mac].filter(Boolean).join(" ");
async function search(more) {
  const text = $("query").value.trim(), vrf = $("vrf").value, query = new URLSearchParams();
  const isAddress = text !== "" && !text.includes("/");
  if (text) query.set(isAddress ? "address" : "prefix", text);
  if (vrf) query.set("vrf", vrf);
  if (!isAddress) query.set("limit", ROUTES);
  if (more) query.set("after", next);
  const verdict = $("verdict");
  try {
    const reply = await ask("/v1/routes?" + query);
    shown = (more ? shown : []).concat(reply.routes);
    next = reply.next || null;
    $("more").hidden = !next;
    set($("totals"), whole(reply.total_ipv4) + " IPv4 and " + whole(reply.total_ipv6) + " IPv6 routes in this table, " + whole(shown.length) + " shown");
    verdict.hidden = !isAddress;
    verdict.className = "";
    if (isAddress) verdict.replaceChildren(...whereTo(text, reply).map(line => make("div", {}, line)));
    table("routes", [["prefix"], ["action"], ["next hop"], ["protocol"], ["metric", 1]], shown.map(route => [
      route.prefix, ACTIONS[route.action] || route.action, route.reason || route.hops.map(hop).join(", "), route.protocol, route.metric || "",
    ]), "no routes");
  } catch (error) {
    verdict.hidden = false;
    verdict.className = "bad";
    verdict.textContent = error.message;
  }
}
function whereTo(address, reply) {
  const lines = reply.routes.map(route =>
    "A packet to " + address + " is " + (route.reason ? "given to Linux: " + route.reason : ACTIONS[route.action] || route.action) +
    (route.hops.length ? ", " + route.hops.map(hop).join(" or ") : "") + ".");
  const linux = (reply.linux_only || []).map(only =>
    (only.all ? "Linux handles all of them: " : "Linux handles some of them: ") + only.entry.packets + ", " + only.entry.why + ".");
  return lines.concat(linux);
}
function showVrfs(ports) {
  const names = [...new Set(ports.flatMap(port => port.interfaces.map(interface_ => interface_.vrf)).filter(Boolean))].sort();
  const select = $("vrf");
  if (select.options.length === names.length + 1 || !names.length) return;
  select.replaceChildren(make("option", { value: "" }, "main table"), ...names.map(name => make("option", { value: name }, "VRF " + name)));
  select.hidden = false;
}

// ---- Flows, on request as well

const end = (address, port) => (address.includes(":") ? "[" + address + "]" : address) + ":" + port;
function leavesAs({ arrives, leaves }) {
  if (!leaves) return "";
  const from = end(leaves.source, leaves.source_port), to = end(leaves.destination, leaves.destination_port);
  return [from !== end(arrives.source, arrives.source_port) && "from " + from, to !== end(arrives.destination, arrives.destination_port) && "to " + to]
    .filter(Boolean).join(" ");
}
async function searchFlows() {
  const query = new URLSearchParams({ sort: "packets", limit: FLOWS }), filter = $("flow-query").value.trim();
  if (filter) query.set("filter", filter);
  try {
    const reply = await ask("/v1/flows?" + query);
    $("flow-trouble").hidden = true;
    const columns = [["protocol"], ["in"], ["source"], ["destination"], ["out"], ["leaves as"], ["packets", 1], ["bytes", 1], ["age", 1], ["idle", 1]];
    table("flows", columns, reply.flows.map(flow => [
      flow.protocol, flow.input, end(flow.arrives.source, flow.arrives.source_port), end(flow.arrives.destination, flow.arrives.destination_port),
      flow.output, leavesAs(flow), whole(flow.packets), short(flow.bytes, " ") + "B", whole(flow.age_s) + " s",
      flow.ended ? "ended" : whole(flow.idle_s) + " s",
    ]), "no flows");
  } catch (error) {
    $("flow-trouble").hidden = false;
    set($("flow-trouble"), error.message);
  }
}

// ---- Updates

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { authorization: "Bearer " + token } : {};
  const reply = await fetch(path, { headers, credentials: "omit", signal: AbortSignal.timeout(TIMEOUT_MS) });
  const body = await reply.json();
  if (reply.ok) return body;
  throw Object.assign(new Error(body.message + (body.hint ? ": " + body.hint : "")), { status: reply.status });
}
// What is asked in each update, or seldom while there is nothing of it.
async function askAbout(name, list) {
  const last = replies.get(name);
  if (last && !last[list].length && round % EMPTY_EVERY) return last;
  const reply = await ask("/v1/" + name);
  replies.set(name, reply);
  return reply;
}
async function update() {
  const [status, ports, drops, workers, links, hooks, sas, cluster] = await Promise.all([
    ask("/v1/status"), ask("/v1/ports"), ask("/v1/drops"), askAbout("workers", "workers"), askAbout("links", "links"),
    askAbout("hooks", "hooks"), askAbout("sas", "sas"), askAbout("cluster", "links"),
  ]);
  if (now && now.status.pid !== status.pid) {
    now = null;
    round = 0;
    histories.clear();
    replies.clear();
  }
  before = now;
  now = { at_ms: performance.now(), status, ports, drops, workers, links, hooks, sas, cluster };
  now.counters = counters(now);
  for (const port of ports.ports) remember("port/" + port.name, (port.rx || {}).packets_per_s);
  for (const drop of dropsOf(drops)) remember(drop.key, rate(drop.key));
  for (const worker of workers.workers) remember("worker/" + worker.worker, rate("worker/" + worker.worker + "/busy_ns"));
  round++;
  showStatus(status);
  showPorts(ports.ports);
  showVrfs(ports.ports);
  showDrops(drops);
  showFlowTable(status.flows);
  showWorkers(workers.workers);
  showGraph(links.links, ports.ports);
  showHooks(hooks.hooks);
  showSas(sas.sas);
  showCluster(cluster);
  if (round === 1) search(false);
  document.body.dataset.updates = round;
}
function failed(error) {
  const login = error.status === 401 || error.status === 429;
  set($("state"), login ? "a token is needed" : "no answer: " + error.message);
  $("state").className = "bad";
  $("login-card").hidden = !login;
  if (!login) return;
  set($("refused"), sessionStorage.getItem("token") ? error.message : "");
  // Otherwise each update would send the wrong token again.
  sessionStorage.removeItem("token");
}
async function loop() {
  if (!document.hidden && $("login-card").hidden) await update().catch(failed);
  setTimeout(loop, PERIOD_MS);
}

$("search").addEventListener("submit", event => {
  event.preventDefault();
  search(false);
});
$("flow-search").addEventListener("submit", event => {
  event.preventDefault();
  searchFlows();
});
$("more").addEventListener("click", () => search(true));
$("login").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  $("login-card").hidden = true;
  update().catch(failed);
});
$("theme").addEventListener("click", () => {
  const scheme = document.documentElement.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.style.colorScheme = scheme === "dark" ? "light" : "dark";
});
loop();
