// Who uses a channel: the claim, open transactions, consumers and producers.
import { endTransaction, forgetProducer, releaseClaim } from "../acts.js";
import { since } from "../channel_row.js";
import { bytes, count, duration, time } from "../format.js";
import { html } from "../html.js";
import { openAct } from "./act_dialog.js";
import { Card, Table } from "./table.js";

const ActButton = ({ act, label, about }) =>
    html`<button class="quiet danger" type="button" onClick=${() => openAct(act)}>
        ${label}<span class="unseen"> ${about}</span>
    </button>`;

const counted = (title, total, shown) =>
    `${title}${total > 0 ? ` (${count(total)}${total > shown ? `, ${shown} shown` : ""})` : ""}`;

const Users = ({ title, total, rows, ...table }) =>
    html`<${Card} title=${counted(title, total, rows.length)}>
        <${Table} label=${title} rows=${rows} ...${table} />
    <//>`;

export const Claim = ({ channel, claim, may }) =>
    html`<${Card}
        title="Claim"
        acts=${
            claim &&
            may.operate &&
            html`<${ActButton} act=${releaseClaim(channel, claim)} label="Release" about="the claim" />`
        }
    >
        <div class="body">
            ${
                claim
                    ? html`<dl class="pairs">
                          <dt>Reader</dt>
                          <dd class="mono">${claim.reader_id}</dd>
                          <dt>Epoch</dt>
                          <dd>${claim.epoch}</dd>
                          <dt>Lease</dt>
                          <dd>${duration(claim.remaining_seconds)} left</dd>
                      </dl>`
                    : html`<p class="muted">No reader claims this channel.</p>`
            }
        </div>
    <//>`;

export function Transactions({ channel, data }) {
    const columns = [
        { title: "Transaction", isName: true, cell: ({ txn_id }) => html`<span class="mono">${txn_id}</span>` },
        { title: "Kind", isWide: true, cell: ({ is_delivery }) => (is_delivery ? "delivery" : "transaction") },
        { title: "By", isWide: true, cell: ({ identity, peer }) => identity || peer },
        { title: "Puts", isNumber: true, cell: ({ put_count }) => count(put_count) },
        { title: "Takes", isNumber: true, cell: ({ take_count }) => count(take_count) },
        { title: "Bodies", isNumber: true, isWide: true, cell: ({ body_bytes }) => bytes(body_bytes) },
        { title: "Open for", isNumber: true, cell: ({ start_time }) => duration(since(start_time, data.time)) },
        {
            title: "Lease left",
            isNumber: true,
            isWide: true,
            cell: ({ lease_remaining_seconds }) => duration(lease_remaining_seconds),
        },
        {
            title: "Act",
            isNumber: true,
            cell: ({ txn_id }) =>
                data.may.operate &&
                html`<${ActButton} act=${endTransaction(channel, txn_id)} label="End" about=${txn_id} />`,
        },
    ];
    return html`<${Users}
        title="Open transactions"
        total=${data.transaction_count}
        rows=${data.transactions}
        columns=${columns}
        keyOf=${({ txn_id }) => txn_id}
        empty="No transaction is open."
    />`;
}

const CONSUMERS = [
    { title: "Consumer", isName: true, cell: ({ peer }) => html`<span class="mono">${peer}</span>` },
    { title: "Identity", isWide: true, cell: ({ identity }) => identity || "–" },
    { title: "Deliveries", isNumber: true, cell: ({ open_deliveries }) => count(open_deliveries) },
    { title: "Events", isNumber: true, cell: ({ open_events }) => count(open_events) },
    { title: "Since", isNumber: true, isWide: true, cell: ({ start_time }) => time(start_time) },
];

export const Consumers = ({ data }) =>
    html`<${Users}
        title="Consumers"
        total=${data.consumer_count}
        rows=${data.consumers}
        columns=${CONSUMERS}
        keyOf=${({ peer, start_time }) => `${peer} ${start_time}`}
        empty="No consumer is connected."
    />`;

export function Producers({ channel, data }) {
    const columns = [
        { title: "Producer", isName: true, cell: ({ producer_id }) => html`<span class="mono">${producer_id}</span>` },
        { title: "Last number", isNumber: true, cell: ({ last_sequence }) => count(last_sequence) },
        { title: "Gaps", isNumber: true, isWide: true, cell: ({ gap_count }) => count(gap_count) },
        { title: "Last seen", isNumber: true, isWide: true, cell: ({ last_seen_time }) => time(last_seen_time) },
        {
            title: "Act",
            isNumber: true,
            cell: ({ producer_id }) =>
                data.may.operate &&
                html`<${ActButton} act=${forgetProducer(channel, producer_id)} label="Forget" about=${producer_id} />`,
        },
    ];
    return html`<${Users}
        title="Producers"
        total=${data.producer_count}
        rows=${data.producers}
        columns=${columns}
        keyOf=${({ producer_id }) => producer_id}
        empty="No producer has numbered its events."
    />`;
}
