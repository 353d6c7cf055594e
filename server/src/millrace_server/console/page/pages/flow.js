// The flow graph: from sources through channels to sinks, with live rates, and where events are held up.
import { depthOf } from "../channel_row.js";
import { aroundMatches, layOut, NODE, withoutQuiet } from "../flow_layout.js";
import { compact, percent, rate } from "../format.js";
import { classes, Component, html } from "../html.js";
import { Live } from "../live.js";
import { Page } from "../parts/page.js";
import { lookOf, State, words } from "../parts/status.js";
import { link, replaceQuery } from "../routes.js";

export class Flow extends Component {
    state = { search: this.props.query.search ?? "" };

    search = ({ target: { value } }) => {
        this.setState({ search: value });
        replaceQuery({ search: value });
    };

    render(_props, { search }) {
        return html`<${Page} title="Flow">
            <input
                type="search"
                aria-label="Search the flow"
                placeholder="Show only the way through…"
                value=${search}
                onInput=${this.search}
            />
            <${Live} path="/api/flow">${(data) => html`<${Graph} data=${data} search=${search} />`}<//>
        <//>`;
    }
}

function Graph({ data, search }) {
    const { quietCount, ...shown } = withoutQuiet(aroundMatches(data, search));
    const graph = layOut(shown);
    const leftOutCount = data.left_out_count + quietCount;
    if (graph.nodes.length === 0) return html`<p class="empty">${search ? "Nothing matches." : "No channels yet."}</p>`;
    const size = { width: `${graph.width}px`, height: `${graph.height}px` };
    return html` <div class="scroll" tabindex="0" role="region" aria-label="Flow graph">
            <div class="flow" style=${size}>
                <svg width=${graph.width} height=${graph.height} aria-hidden="true">
                    ${graph.edges.map(
                        (edge) => html`<${Edge} key=${`${edge.from} ${edge.to} ${edge.label}`} edge=${edge} />`,
                    )}
                </svg>
                <ul>
                    ${graph.nodes.map(
                        (node) => html`<li key=${node.key}><${Node} node=${node} edges=${graph.edges} /></li>`,
                    )}
                </ul>
            </div>
        </div>
        ${
            leftOutCount > 0 &&
            html`<p class="muted">${leftOutCount} more channels that only clients use are left out.</p>`
        }`;
}

function Edge({ edge: { way, rate: events, is_stalled, is_dead_letter } }) {
    return html`<path
        class=${classes(events > 0 && "live", is_dead_letter && "dead", is_stalled && "bad")}
        d=${way
            .slice(1)
            .map((node, index) => curve(way[index], node))
            .join(" ")}
    />`;
}

function curve(source, target) {
    const [x1, y1] = [source.x + NODE.width, source.y + NODE.height / 2];
    const [x2, y2] = [target.x, target.y + NODE.height / 2];
    const bend = Math.max(NODE.gapX / 2, Math.abs(x2 - x1) / 3);
    const start = source.isBend ? `L${x1},${y1}` : `M${x1},${y1}`;
    return `${start} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}

const addressOf = ({ kind, name }) => {
    if (kind === "channel") return link.channel(name);
    return name && ["source", "sink", "sink_group"].includes(kind) ? link.components() : null;
};

function Node({ node, edges }) {
    const address = addressOf(node);
    const look = classes("node", node.kind, lookOf(node.severity));
    const onward = edges.filter(({ from }) => from === node.key);
    const isHeldUp = node.kind === "channel" && onward.length > 0 && onward.every(({ is_stalled }) => is_stalled);
    const content = html` <strong>${titleOf(node)}</strong>
        <span class="muted small">${figureOf(node)}</span>
        <span class="small"
            >${
                node.state && html`<${State} state=${isHeldUp ? "held up" : node.state} severity=${node.severity} /> `
            }<span class="muted">${detailOf(node)}</span></span
        >
        ${
            onward.length > 0 &&
            html`<span class="unseen">leads to ${onward.map(({ way }) => way.at(-1).title).join(", ")}</span>`
        }`;
    const style = { left: `${node.x}px`, top: `${node.y}px` };
    return address
        ? html`<a class=${look} style=${style} href=${address} title=${node.reason}>${content}</a>`
        : html`<div class=${look} style=${style} title=${node.reason}>${content}</div>`;
}

// Channels and components have a name; their kind stands below it.
const titleOf = ({ kind, name, title }) => (kind === "callers" ? "clients" : (name ?? title));

function figureOf(node) {
    if (node.kind === "callers") return node.after.length > 0 ? "append and put" : "take, consume and read";
    if (node.kind !== "channel") return node.name && `${words(node.kind)} · ${rate(node.rate)}`;
    return `${rate(node.rate)} in · ${rate(node.take_rate)} out`;
}

const detailOf = (node) =>
    node.kind === "channel" ? `${compact(depthOf(node))}, ${percent(node.fill)}` : node.details;
