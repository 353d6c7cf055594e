// Places the nodes of the flow graph: a column for each step on the way, rows so that few lines cross.

export const NODE = { width: 180, height: 72, gapX: 44, gapY: 16 };
const BEGINNING = 0;
const KINDS = [[], ["callers", "source"], ["step"], ["channel"], ["sink_group"], ["sink"], ["place"]];
const [SINKS, END] = [5, 6];
const SWEEPS = 4;
const CLIENTS_CHANNELS_MAX = 20;

// Returns {nodes: [node with x and y], edges: [edge with its `way` from node to node], width, height}.
export function layOut({ nodes, edges }) {
    const ends = deadEnds(nodes, edges);
    const placed = new Map(
        nodes.map((node) => [node.key, { ...node, isDeadEnd: ends.has(node.key), before: [], after: [], row: 0 }]),
    );
    const known = edges.filter(({ from, to }) => placed.has(from) && placed.has(to) && !ends.has(from));
    for (const { from, to } of known) join(placed.get(from), placed.get(to));
    const columns = columnsOf([...placed.values()]);
    const drawn = known.map((edge) => ({ ...edge, way: wayOf(placed.get(edge.from), placed.get(edge.to), columns) }));
    columns.forEach(number);
    for (let sweep = 0; sweep < SWEEPS; sweep += 1) sortColumns(columns, sweep % 2 === 0 ? "before" : "after");
    for (const node of columns.flat()) {
        node.x = node.column * (NODE.width + NODE.gapX);
        node.y = node.row * (NODE.height + NODE.gapY);
    }
    return {
        nodes: columns.flat().filter(({ isBend }) => !isBend),
        edges: drawn,
        width: columns.length * (NODE.width + NODE.gapX) - NODE.gapX,
        height: Math.max(0, ...columns.map((column) => column.length)) * (NODE.height + NODE.gapY) - NODE.gapY,
    };
}

function join(one, next) {
    one.after.push(next);
    next.before.push(one);
}

// A line that passes columns has a place of its own in each of them, so that it does not run behind a node.
function wayOf(source, target, columns) {
    const way = [source];
    for (let column = source.column + 1; column < target.column; column += 1) {
        const bend = { isBend: true, title: source.title, column, before: [], after: [], row: 0 };
        columns[column].push(bend);
        join(way.at(-1), bend);
        way.push(bend);
    }
    if (way.length > 1) join(way.at(-1), target);
    return [...way, target];
}

// A column for each kind, in the order of the way: what events come from stands before it, what they end in behind it.
function stageOf({ kind, before, after, isDeadEnd }) {
    if (kind === "place" && after.length > 0) return BEGINNING;
    if (kind === "callers" && before.length > 0) return SINKS;
    return isDeadEnd ? END : KINDS.findIndex((kinds) => kinds.includes(kind));
}

// Channels in which only dead letters wait, until a client replays them.
function deadEnds(nodes, edges) {
    const callers = new Set(nodes.filter(isCaller).map(({ key }) => key));
    const keys = new Set(edges.filter((edge) => edge.is_dead_letter).map(({ to }) => to));
    for (const { from, to } of edges) if (!callers.has(to)) keys.delete(from);
    return keys;
}

const isCaller = ({ kind }) => kind === "callers";

// In a column what clients use comes last.
function columnsOf(nodes) {
    const columns = KINDS.map((_kinds, index) => nodes.filter((node) => stageOf(node) === index)).filter(
        (column) => column.length > 0,
    );
    columns.forEach((column, index) => {
        column.sort((one, other) => isCaller(one) - isCaller(other) || one.title.localeCompare(other.title));
        for (const node of column) node.column = index;
    });
    return columns;
}

const number = (column) => column.forEach((node, row) => (node.row = row));

// Sorts each column by the mean row of its neighbours on one side.
function sortColumns(columns, side) {
    const meanOf = (node) =>
        node[side].length === 0 ? node.row : node[side].reduce((sum, { row }) => sum + row, 0) / node[side].length;
    for (const column of side === "before" ? columns : [...columns].reverse()) {
        const means = new Map(column.map((node) => [node, meanOf(node)]));
        number(column.sort((one, other) => means.get(one) - means.get(other)));
    }
}

// What matches, with all nodes upstream and downstream of it, and the edges between them.
export function aroundMatches({ nodes, edges }, search) {
    const wanted = search.trim().toLowerCase();
    if (!wanted) return { nodes, edges };
    const matches = nodes
        .filter(({ title, name }) => `${title} ${name ?? ""}`.toLowerCase().includes(wanted))
        .map(({ key }) => key);
    const kept = new Set([...reached(matches, edges, "from", "to"), ...reached(matches, edges, "to", "from")]);
    return {
        nodes: nodes.filter(({ key }) => kept.has(key)),
        edges: edges.filter((edge) => kept.has(edge.from) && kept.has(edge.to)),
    };
}

function reached(keys, edges, near, far) {
    const seen = new Set(keys);
    const waiting = [...seen];
    while (waiting.length > 0) {
        const key = waiting.pop();
        for (const edge of edges) {
            if (edge[near] !== key || seen.has(edge[far])) continue;
            seen.add(edge[far]);
            waiting.push(edge[far]);
        }
    }
    return seen;
}

// Without the channels that only clients use, except the first ones in the order of trouble and of traffic.
export function withoutQuiet({ nodes, edges }) {
    const callers = new Set(nodes.filter(isCaller).map(({ key }) => key));
    const connected = new Set(
        edges.filter(({ from, to }) => !callers.has(from) && !callers.has(to)).flatMap(({ from, to }) => [from, to]),
    );
    const others = nodes.filter(({ key, kind }) => kind === "channel" && !connected.has(key));
    const quiet = new Set(
        others
            .sort(byImportance)
            .slice(CLIENTS_CHANNELS_MAX)
            .map(({ key }) => key),
    );
    return {
        nodes: nodes.filter(({ key }) => !quiet.has(key)),
        edges: edges.filter(({ from, to }) => !quiet.has(from) && !quiet.has(to)),
        quietCount: quiet.size,
    };
}

const SEVERITIES = ["error", "warning"];
const importanceOf = ({ severity }) => (severity === null ? SEVERITIES.length : SEVERITIES.indexOf(severity));
const trafficOf = ({ rate, take_rate }) => (rate ?? 0) + (take_rate ?? 0);

function byImportance(one, other) {
    return importanceOf(one) - importanceOf(other) || trafficOf(other) - trafficOf(one);
}
