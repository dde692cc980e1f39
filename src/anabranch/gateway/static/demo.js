/* The page /v1/demo: follows a topic and publishes to it. */

import { Anabranch } from "/v1/anabranch.js";

const ROWS_MAX = 200;
const element = (id) => document.getElementById(id);
let client = null;
let clientToken = null;
let subscription = null;

function note(text, isBad = false) {
  element("note").textContent = text;
  element("note").classList.toggle("bad", isBad);
}

function connected() {
  const token = element("token").value || null;
  if (client === null || token !== clientToken) {
    if (client !== null) client.close();
    clientToken = token;
    client = new Anabranch({ token, onstate: showState });
  }
  return client;
}

function showState(state) {
  element("state").textContent = state;
  element("state").dataset.state = state;
}

function follow(from) {
  if (subscription !== null) subscription.close();
  element("records").replaceChildren();
  const filter = filterOf(element("filter").value);
  const topic = element("topic").value;
  subscription = connected().subscribe(topic, show, {
    from,
    filter,
    onerror: (error) => {
      const isNew = error.code === "UNKNOWN_TOPIC_OR_PARTITION";
      note(isNew ? `There is no topic ${topic} yet: publish a record, and it is made.` : error.message, !isNew);
    },
    onend: () => (subscription = null),
  });
}

function filterOf(text) {
  const [header, value] = pairOf(text);
  if (header === "") return undefined;
  return value === undefined ? { header, exists: true } : { header, equals: value };
}

function pairOf(text) {
  const at = text.indexOf("=");
  return at < 0 ? [text.trim(), undefined] : [text.slice(0, at).trim(), text.slice(at + 1).trim()];
}

function show(record) {
  const row = document.createElement("tr");
  const omitted = record.omitted_bytes && `${record.omitted_bytes} bytes: too long to show here`;
  const value = omitted ?? record.value_base64 ?? record.value;
  const headers = (record.headers ?? []).map((pair) => pair.map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join("="));
  const cells = [
    record.partition,
    record.offset,
    new Date(record.timestamp).toLocaleTimeString(),
    record.key_base64 ?? (typeof record.key === "object" ? JSON.stringify(record.key) : record.key),
    typeof value === "string" ? value : JSON.stringify(value),
    headers.join(", "),
  ];
  for (const each of cells) {
    const cell = document.createElement("td");
    cell.textContent = each;
    row.append(cell);
  }
  const rows = element("records");
  rows.prepend(row);
  while (rows.childElementCount > ROWS_MAX) rows.lastElementChild.remove();
}

async function publish() {
  const [name, held] = pairOf(element("headers").value);
  const headers = name === "" ? undefined : { [name]: held ?? "" };
  try {
    const topic = element("topic").value;
    const placed = await connected().publish(topic, element("value").value, { key: element("key").value || null, headers });
    note(`Written to partition ${placed.partition} at offset ${placed.offset}.`);
    if (subscription === null) follow("earliest"); // The record has made the topic.
  } catch (error) {
    note(error.message, true);
  }
}

element("follow").addEventListener("submit", (event) => {
  event.preventDefault();
  note("");
  follow("new");
});
element("write").addEventListener("submit", (event) => {
  event.preventDefault();
  publish();
});
follow("new");
