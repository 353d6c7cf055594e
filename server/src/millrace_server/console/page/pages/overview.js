// All channels at a glance, and first of all what is wrong.
import { createChannel } from "../acts.js";
import { depthOf, fillOf, since } from "../channel_row.js";
import { compact, count, duration, percent, rate } from "../format.js";
import { Component, html } from "../html.js";
import { Live } from "../live.js";
import { openAct } from "../parts/act_dialog.js";
import { Page } from "../parts/page.js";
import { Sparkline } from "../parts/sparkline.js";
import { State } from "../parts/status.js";
import { Card, Figures, Pager, Table } from "../parts/table.js";
import { Troubles } from "../parts/troubles.js";
import { link, replaceQuery, withQuery } from "../routes.js";

const PAGE_ROWS = 50;

const COLUMNS = [
    { title: "Channel", sort: "name", isName: true, cell: nameOf },
    {
        title: "State",
        sort: "trouble",
        isWide: true,
        cell: ({ state, severity }) => html`<${State} state=${state} severity=${severity} />`,
    },
    { title: "Depth", sort: "depth", isNumber: true, cell: (row) => count(depthOf(row)) },
    {
        title: "Full",
        sort: "fill",
        isNumber: true,
        isWide: true,
        cell: (row) => html`<${Fill} fraction=${fillOf(row)} />`,
    },
    { title: "Last hour", isWide: true, cell: ({ depths }) => html`<${Sparkline} values=${depths} />` },
    { title: "In", sort: "put_rate", isNumber: true, cell: ({ put_rate }) => rate(put_rate) },
    { title: "Out", sort: "take_rate", isNumber: true, cell: ({ take_rate }) => rate(take_rate) },
    {
        title: "Oldest event",
        sort: "oldest_age",
        isNumber: true,
        isWide: true,
        cell: ({ oldest_age }) => duration(oldest_age),
    },
    {
        title: "Full in",
        sort: "time_to_full",
        isNumber: true,
        isWide: true,
        cell: ({ seconds_to_full }) => duration(seconds_to_full),
    },
];

function nameOf({ name, state, severity }) {
    return html`<a href=${link.channel(name)}>${name}</a
        ><small class="narrow"><${State} state=${state} severity=${severity} /></small>`;
}

const Fill = ({ fraction }) =>
    html`${percent(fraction)}
        <meter min="0" max="1" low="0.8" high="0.95" optimum="0" value=${fraction ?? 0} aria-hidden="true" />`;

export class Overview extends Component {
    state = { search: "", sort: "trouble", isDescending: false, offset: 0, ...this.props.query };

    change = (changed) => {
        const state = { ...this.state, offset: 0, ...changed };
        this.setState(state);
        replaceQuery({ search: state.search });
    };

    render(_props, { search, sort, isDescending, offset }) {
        const path = withQuery("/api/overview", {
            search,
            sort,
            descending: isDescending ? 1 : "",
            offset,
            limit: PAGE_ROWS,
        });
        const acts = html`<button type="button" onClick=${() => openAct(createChannel())}>Create a channel</button>`;
        return html`<${Page} title="Overview" acts=${acts}>
            <${Live} path=${path}>${(data) => this.renderData(data)}<//>
        <//>`;
    }

    renderData(data) {
        const { search, sort, isDescending, offset } = this.state;
        const rows = data.channels.map((row) => ({
            ...row,
            oldest_age: since(row.oldest_time, data.time),
        }));
        const field = html`<input
            type="search"
            aria-label="Search channels"
            placeholder="Search"
            value=${search}
            onInput=${(event) => this.change({ search: event.target.value })}
        />`;
        return html` <${Troubles} troubles=${data.troubles} count=${data.trouble_count} now=${data.time} />
            <${Figures}
                entries=${[
                    ["Channels", count(data.channel_count)],
                    ["Events queued", compact(data.queued_events)],
                    ["In", rate(data.put_rate)],
                    ["Out", rate(data.take_rate)],
                    ["Open transactions", count(data.open_transactions)],
                ]}
            />
            <${Card} title="Channels" acts=${field}>
                <${Table}
                    label="Channels"
                    columns=${COLUMNS}
                    rows=${rows}
                    keyOf=${(row) => row.name}
                    order=${{ sort, isDescending }}
                    onOrder=${this.change}
                    empty=${search ? `No channel's name contains “${search}”.` : "No channels yet."}
                />
                ${
                    data.total > PAGE_ROWS &&
                    html`<div class="body">
                        <${Pager}
                            offset=${offset}
                            limit=${PAGE_ROWS}
                            total=${data.total}
                            onMove=${(to) => this.change({ offset: to })}
                        />
                    </div>`
                }
            <//>`;
    }
}
