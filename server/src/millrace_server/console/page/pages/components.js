// Sources, sinks and sink groups, with the reason of each that does not work, and its retry.
import { retryComponent } from "../acts.js";
import { ago, bytes, compact, count, duration, rate } from "../format.js";
import { Component, html } from "../html.js";
import { Live } from "../live.js";
import { openAct } from "../parts/act_dialog.js";
import { Page } from "../parts/page.js";
import { State, words } from "../parts/status.js";
import { Card, Table } from "../parts/table.js";
import { link } from "../routes.js";

const TITLES = { source: "Sources", sink: "Sinks", sink_group: "Sink groups" };
const RETRIED = new Set(["backing_off", "failed"]);

const OMISSIONS = [
    ["failure_count", "failures"],
    ["filtered_count", "filtered"],
    ["unrouted_count", "unrouted"],
    ["dead_lettered_count", "dead letters"],
    ["dropped_count", "dropped"],
    ["missed_count", "missed"],
];

const COLUMNS = [
    { title: "Name", isName: true, cell: ({ name, type }) => html`${name} <span class="tag">${type}</span>` },
    { title: "State", isReason: true, cell: (one) => html`<${StateAndReason} component=${one} />` },
    {
        title: "Channels",
        isWide: true,
        cell: ({ channels }) => channels.map((name) => html`<a key=${name} href=${link.channel(name)}>${name}</a> `),
    },
    { title: "Rate", isNumber: true, cell: ({ event_rate }) => rate(event_rate) },
    {
        title: "Events",
        isNumber: true,
        isWide: true,
        cell: (one) => html`${compact(one.event_count)} <small class="muted">${bytes(one.body_bytes)}</small>`,
    },
    {
        title: "Last batch",
        isNumber: true,
        isWide: true,
        cell: ({ progress_age_seconds }) => ago(progress_age_seconds),
    },
    { title: "Failures and omissions", isWide: true, cell: omissionsOf },
];

function StateAndReason({ component }) {
    const { kind, name, state, reason, since_time, now } = component;
    return html`<${State} state=${state} />
        <small class="muted">for ${duration(now - since_time)}</small> ${reason && html`<p>${reason}</p>`}
        ${
            RETRIED.has(state) &&
            html`<button type="button" onClick=${() => openAct(retryComponent(component))}>
                Retry now<span class="unseen">: ${words(kind)} ${name}</span>
            </button>`
        }`;
}

function omissionsOf(component) {
    const some = OMISSIONS.filter(([name]) => component[name] > 0);
    return some.length === 0 ? "–" : some.map(([name, label]) => `${count(component[name])} ${label}`).join(", ");
}

export class Components extends Component {
    render() {
        return html`<${Page} title="Components">
            <${Live} path="/api/components"
                >${({ components, time }) => tablesOf(components.map((one) => ({ ...one, now: time })))}<//
            >
        <//>`;
    }
}

function tablesOf(components) {
    if (components.length === 0)
        return html`<p class="empty">This server runs no sources or sinks; only clients use its channels.</p>`;
    return Object.entries(TITLES).map(([kind, title]) => {
        const rows = components.filter((one) => one.kind === kind);
        return (
            rows.length > 0 &&
            html`<${Card} key=${kind} title=${title}>
                <${Table} label=${title} columns=${COLUMNS} rows=${rows} keyOf=${({ name }) => name} />
            <//>`
        );
    });
}
