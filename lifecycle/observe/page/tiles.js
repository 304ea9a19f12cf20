// An overview of the program: seven figures.

import { bytes, count, duration, rate, tone, visible } from "./format.js";
import { html, spark } from "./parts.js";

export function tiles(store, workers) {
  const running = workers.filter((node) => tone(node.status) === "run").length;
  const failed = workers.filter((node) => tone(node.status) === "bad" || node.circuit === "open").length;
  const restarts = workers.reduce((sum, node) => sum + node.restarts, 0);
  const waiting = store.of("lane").reduce((sum, lane) => sum + lane.waiting, 0);
  const failures = store.of("router").reduce((sum, router) => sum + router.failed, 0);
  const slowest = Object.entries(store.figures.latency).reduce((most, [id, { p95 }]) => (p95 > most.p95 ? { id, p95 } : most), { p95: 0 });
  const slow = store.nodes.get(slowest.id)?.pattern ?? slowest.id;
  const memory = Object.values(store.figures.memory).reduce((sum, size) => sum + size, 0);
  const tile = (name, value, note, look = "") => html`<div class="tile ${look}"><dt>${name}</dt><dd><b class="number">${value}</b><span>${note}</span></dd></div>`;
  return html`<dl class="tiles" aria-label="Overview">
    ${tile("Workers", html`${count(running)}<small>/${count(workers.length)}</small>`, failed ? html`${count(failed)} failed` : "running", failed ? "bad" : "")}
    ${tile("Restarts", count(restarts), "in total", restarts ? "warm" : "")}
    ${tile("Events", html`${rate(store.rate("events"))}<small>/s</small>`, spark(store.series.get("events"), { label: "Events in the last minute" }))}
    ${tile("Failures", count(failures), spark(store.series.get("failures"), { label: "Failures in the last minute" }), store.rate("failures") ? "bad" : "")}
    ${tile("Slowest p95", slowest.p95 ? duration(slowest.p95) : "–", html`<bdi title=${visible(slow ?? "")}>${visible(slow ?? "no calls yet")}</bdi>`)}
    ${tile("Waiting", count(waiting), "in lanes", waiting ? "warm" : "")}
    ${tile("Memory", bytes(memory), store.figures.cpu == null ? "all processes" : `CPU ${Math.round(store.figures.cpu * 100)} %`)}
  </dl>`;
}
