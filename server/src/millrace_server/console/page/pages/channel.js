// One channel: its figures and charts, who uses it, where it is stored, how it is configured, and the acts on it.
import { deleteChannel, purgeChannel, resizeChannel } from "../acts.js";
import { channelPath } from "../api.js";
import { depthOf, since } from "../channel_row.js";
import { ago, bytes, count, duration, percent, rate } from "../format.js";
import { Component, html } from "../html.js";
import { Live } from "../live.js";
import { openAct } from "../parts/act_dialog.js";
import { Claim, Consumers, Producers, Transactions } from "../parts/channel_users.js";
import { History } from "../parts/history.js";
import { Page } from "../parts/page.js";
import { Settings } from "../parts/settings.js";
import { State } from "../parts/status.js";
import { Card, Figures, Table } from "../parts/table.js";
import { link } from "../routes.js";

export class ChannelPage extends Component {
    frame = (data, content) => {
        const above = data ? `Channel of type ${data.row.type}` : "Channel";
        const acts = data && html`<${Acts} name=${this.props.name} data=${data} />`;
        return html`<${Page} title=${this.props.name} above=${above} acts=${acts}>${content}<//>`;
    };

    render({ name }) {
        return html`<${Live} path=${channelPath(name)} frame=${this.frame}>
            ${(data) => html`<${Channel} name=${name} data=${data} />`}
        <//>`;
    }
}

const Acts = ({ name, data: { may, row, config, is_configured } }) => html`
    ${may.peek && html`<a href=${link.events(name)}>Browse events</a>`}
    ${may.operate && html`<button type="button" onClick=${() => openAct(resizeChannel(name, config))}>Resize</button>`}
    ${
        may.operate &&
        html`<button class="danger" type="button" onClick=${() => openAct(purgeChannel(name, row.queued_events))}>
            Purge
        </button>`
    }
    ${
        may.admin &&
        !is_configured &&
        html`<button class="danger" type="button" onClick=${() => openAct(deleteChannel(name))}>Delete</button>`
    }
`;

function Channel({ name, data }) {
    const { row } = data;
    return html`
        ${row.reason && html`<p class="banner ${row.severity === "error" ? "bad" : "warn"}">${row.reason}</p>`}
        <${Now} data=${data} />
        <${History} channel=${name} />
        <div class="grid">
            <${Claim} channel=${name} claim=${data.claim} may=${data.may} />
            <${Neighbours} writers=${data.writers} readers=${data.readers} />
        </div>
        <${Transactions} channel=${name} data=${data} />
        <${Consumers} data=${data} />
        <${Producers} channel=${name} data=${data} />
        <div class="grid">
            ${data.log && html`<${Log} log=${data.log} now=${data.time} />`}
            ${data.counters && html`<${Counters} counters=${data.counters} />`}
        </div>
        <${Settings} title="Configuration" settings=${data.config} note=${originOf(data)} />
    `;
}

function Now({ data: { row, time, gauges, replayed_fraction } }) {
    const state = row.state === "replaying" ? `replayed ${percent(replayed_fraction)}` : null;
    return html`<${Figures}
        entries=${[
            ["State", html`<${State} state=${row.state} severity=${row.severity} />`, state],
            ["Depth", count(depthOf(row)), `of ${count(row.capacity)} · ${count(row.taken_events)} taken`],
            ["Bodies", bytes(row.body_bytes), `of ${bytes(row.body_bytes_max)}`],
            ["In", rate(row.put_rate), lastOf(row.last_put_time, time)],
            ["Out", rate(row.take_rate), lastOf(row.last_take_time, time)],
            ["Oldest event", duration(since(row.oldest_time, time)), `sequence ${gauges?.first_sequence ?? "–"}`],
            row.seconds_to_empty === null
                ? ["Full in", duration(row.seconds_to_full)]
                : ["Empty in", duration(row.seconds_to_empty)],
        ]}
    />`;
}

const lastOf = (at, now) => (at === null ? "none since the start" : `last ${ago(since(at, now))}`);

const originOf = ({ is_configured, is_overridden }) => {
    if (!is_configured) return "Created by a client.";
    return is_overridden
        ? "From the configuration file, changed until its next reload."
        : "From the configuration file.";
};

const Neighbours = ({ writers, readers }) =>
    html`<${Card} title="Components">
        <div class="body">
            <dl class="pairs">
                <dt>Written by</dt>
                <dd>${named(writers)}</dd>
                <dt>Read by</dt>
                <dd>${named(readers)}</dd>
            </dl>
        </div>
    <//>`;

const named = (components) =>
    components.length === 0
        ? "no component"
        : components.map(
              ({ kind, name }) => html`<a key=${name} href=${link.components()}>${kind.replace("_", " ")} ${name}</a> `,
          );

const DIRECTORIES = [
    { title: "Directory", isName: true, cell: ({ path }) => html`<span class="mono">${path}</span>` },
    { title: "Free", isNumber: true, cell: ({ free_bytes }) => bytes(free_bytes) },
];

const Log = ({ log, now }) =>
    html`<${Card} title="Log">
        <div class="body">
            <dl class="pairs">
                <dt>On the disk</dt>
                <dd>${bytes(log.bytes)} in ${count(log.segment_count)} segment${log.segment_count === 1 ? "" : "s"}</dd>
                <dt>Checkpoint</dt>
                <dd>${log.checkpoint_time === null ? "none yet" : ago(since(log.checkpoint_time, now))}</dd>
            </dl>
        </div>
        <${Table}
            label="Directories of the log"
            columns=${DIRECTORIES}
            rows=${log.directories}
            keyOf=${({ path }) => path}
        />
    <//>`;

const COUNTERS = [
    { title: "Since the start", isName: true, cell: ([name]) => html`<span class="mono">${name}</span>` },
    { title: "Count", isNumber: true, cell: ([, value]) => count(value) },
];

function Counters({ counters: { refused, ...others } }) {
    const refusals = Object.entries(refused).map(([reason, value]) => [`refused: ${reason}`, value]);
    return html`<${Card} title="Counters">
        <${Table}
            label="Counters"
            columns=${COUNTERS}
            rows=${[...Object.entries(others), ...refusals]}
            keyOf=${([name]) => name}
        />
    <//>`;
}
