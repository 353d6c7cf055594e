// What an operator can do: what each act says, asks and sends. The server decides whether it may be done.
import { count } from "./format.js";
import { link } from "./routes.js";

const NAME = "[a-z0-9][a-z0-9._\\-]{0,63}";
const WHOLE = "[0-9]+";
const DECIMAL = "[0-9]+(\\.[0-9]+)?";

export const createChannel = () => ({
    title: "Create a channel",
    path: "create_channel",
    verb: "Create",
    fields: [
        {
            name: "channel",
            label: "Name",
            hint: "Lower-case letters, digits, dots, hyphens and underscores.",
            pattern: NAME,
            isRequired: true,
        },
        {
            name: "type",
            label: "Type",
            choices: ["file", "memory", "spillable"],
            initial: "file",
            hint: "Only channels of type file survive a crash of the server.",
        },
        { name: "capacity", label: "Capacity in events", hint: "Empty: the type's default.", pattern: WHOLE },
    ],
    body: ({ channel, type, capacity }) => ({
        channel,
        confirm: channel,
        settings: { type, ...numbers({ capacity }) },
    }),
    onDone: () => (location.hash = link.overview()),
});

export const resizeChannel = (channel, config) => {
    const valueOf = (name) => config.find((setting) => setting.name === name)?.value ?? "";
    return {
        title: `Resize ${channel}`,
        warning:
            "Growing takes effect at once. Shrinking waits for free capacity, and changes nothing if there is none in time.",
        path: "update_channel",
        verb: "Resize",
        name: channel,
        fields: [
            { name: "capacity", label: "Capacity in events", initial: valueOf("capacity"), pattern: WHOLE },
            { name: "byte_capacity", label: "Capacity in bytes", initial: valueOf("byte_capacity"), pattern: WHOLE },
            {
                name: "retention_seconds",
                label: "Retention in seconds",
                initial: valueOf("retention_seconds"),
                pattern: DECIMAL,
                hint: "0: no limit.",
            },
        ],
        body: (values, confirm) => {
            const changed = Object.entries(values).filter(([name, value]) => String(value) !== String(valueOf(name)));
            return { channel, confirm, settings: numbers(Object.fromEntries(changed)) };
        },
    };
};

export const purgeChannel = (channel, queued) => ({
    title: `Purge ${channel}`,
    warning: `Removes all events that no open transaction has taken: ${count(queued)} now. They cannot be restored.`,
    path: "purge_channel",
    verb: "Purge",
    name: channel,
    isDangerous: true,
    body: (_values, confirm) => ({ channel, confirm }),
});

export const deleteChannel = (channel) => ({
    title: `Delete ${channel}`,
    warning: "Deletes the channel with its log and its settings.",
    path: "delete_channel",
    verb: "Delete",
    name: channel,
    isDangerous: true,
    fields: [
        { name: "is_forced", label: "Even if it holds events or open transactions, which are lost", initial: false },
    ],
    body: ({ is_forced }, confirm) => ({ channel, confirm, is_forced }),
    onDone: () => (location.hash = link.overview()),
});

export const endTransaction = (channel, txn_id) => ({
    title: "End the transaction",
    warning: "Rolls it back: its puts are discarded, and what it has taken returns to the queue.",
    path: "end_transaction",
    verb: "Roll back",
    name: txn_id,
    isDangerous: true,
    body: (_values, confirm) => ({ channel, txn_id, confirm }),
});

export const releaseClaim = (channel, claim) => ({
    title: `Release the claim on ${channel}`,
    warning: `Reader ${claim.reader_id} loses its right to the channel. What it has not acknowledged stays in the queue.`,
    path: "release_claim",
    verb: "Release",
    name: channel,
    isDangerous: true,
    body: (_values, confirm) => ({ channel, epoch: claim.epoch, confirm }),
});

export const forgetProducer = (channel, producer_id) => ({
    title: "Forget the producer",
    warning: "Forgets which of its events are stored. If it still runs, what it repeats is stored twice.",
    path: "forget_producer",
    verb: "Forget",
    name: producer_id,
    isDangerous: true,
    body: (_values, confirm) => ({ channel, producer_id, confirm }),
});

export const replayDeadLetters = (channel, sequences, onDone) => ({
    title: sequences.length === 1 ? "Replay the dead letter" : `Replay ${count(sequences.length)} dead letters`,
    warning: "Puts the events back and removes them here. Put right first what made them fail.",
    path: "replay_dead_letters",
    verb: "Replay",
    name: channel,
    fields: [{ name: "target", label: "Into the channel", hint: "Empty: each into the channel that it comes from." }],
    body: ({ target }, confirm) => ({ channel, sequences, target: target || null, confirm }),
    onDone,
});

export const retryComponent = ({ kind, name }) => ({
    title: `Retry ${name}`,
    warning: "Tries at once, instead of after the pause.",
    path: "retry_component",
    verb: "Retry",
    name,
    body: (_values, confirm) => ({ kind, name, confirm }),
});

// Settings that were filled in, as numbers.
const numbers = (values) =>
    Object.fromEntries(
        Object.entries(values)
            .filter(([, value]) => value !== "")
            .map(([name, value]) => [name, Number(value)]),
    );
