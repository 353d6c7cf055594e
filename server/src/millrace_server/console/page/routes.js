// Addresses of the console's pages: what follows `#` is a path and a query, so that each view can be linked to.

const encoded = (value) => encodeURIComponent(value);

export const link = {
    overview: () => "#/",
    flow: () => "#/flow",
    channel: (name) => `#/channels/${encoded(name)}`,
    events: (name, query = {}) => withQuery(name ? `#/events/${encoded(name)}` : "#/events", query),
    deadLetters: (name) => (name ? `#/dead-letters/${encoded(name)}` : "#/dead-letters"),
    components: () => "#/components",
    configuration: () => "#/configuration",
};

export function withQuery(path, query) {
    const known = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    return known.length > 0 ? `${path}?${new URLSearchParams(known)}` : path;
}

// Where the reader is: the page's name, the name in the path if it has one, and the query.
export function currentRoute() {
    const [path, query = ""] = location.hash.slice(1).split("?");
    const [page = "", name = ""] = path.split("/").filter(Boolean);
    return { page, name: decoded(name), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text; // Not an address that `link` made.
    }
}

// Changes the query in place: a filter is part of the address, but not a step of the history.
export function replaceQuery(query) {
    const [path] = location.hash.split("?");
    history.replaceState(null, "", withQuery(path || "#/", query));
}
