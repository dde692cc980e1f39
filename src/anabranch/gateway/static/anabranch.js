/* anabranch.js: publish and subscribe from a browser, or anything else with a WebSocket. No build, no dependencies.

   import { Anabranch } from "http://127.0.0.1:8080/v1/anabranch.js";
   const client = new Anabranch();                                     // the node this page came from
   const { partition, offset } = await client.publish("orders", { item: 7 }, { key: "k", headers: { kind: "new" } });
   const orders = client.subscribe("orders", (record) => console.log(record.offset, record.value), { from: "earliest" });
   orders.close();
   client.close();

   A lost connection is made anew, and every subscription goes on where it was: no record is missed, none comes twice.
   In a group, records come again that were not acknowledged. Offsets are texts: they may exceed 2^53. A handler that
   returns a promise is waited for, and the node sends no more than the credit it was given meanwhile. */

const PAUSE_MS = 250;
const PAUSE_MS_MAX = 10000;
const CREDIT = 1000;
const PUBLISHES_MAX = 10000;

export class AnabranchError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "AnabranchError";
    this.code = code; // Kafka's name for it, such as UNKNOWN_TOPIC_OR_PARTITION; CONNECTION_LOST and CLOSED are ours.
  }
}

export class Anabranch {
  /* url: "ws://127.0.0.1:8080/v1/ws"; token: the node's gateway token, if it wants one; onstate(state) is told
     "connecting", "open", "waiting" (for another try) and "closed". */
  constructor({ url = pageUrl(), token = null, onstate = () => {} } = {}) {
    this.url = token === null ? url : url + (url.includes("?") ? "&" : "?") + "access_token=" + encodeURIComponent(token);
    this.onstate = onstate;
    this.state = "connecting";
    this._subscriptions = new Map();
    this._asked = new Map(); // Publishes that were sent and not answered.
    this._unsent = []; // Publishes that wait for a connection.
    this._lastId = 0;
    this._pauseMs = PAUSE_MS;
    this._timer = null;
    this._connect();
  }

  /* Resolves to {partition, offset, timestamp} once the record is safe. value and key: text, bytes (ArrayBuffer or a
     view of one), null, or anything else as JSON. CONNECTION_LOST: whether it was written is not known. */
  publish(topic, value, { key = null, headers, partition, timestamp } = {}) {
    if (this.state === "closed") return Promise.reject(closedError());
    if (this._asked.size + this._unsent.length >= PUBLISHES_MAX) {
      return Promise.reject(new AnabranchError("TOO_MANY_PUBLISHES", "Too many records wait for an answer: await some of them."));
    }
    const id = this._nextId();
    const message = { type: "publish", id, topic, headers, partition, timestamp };
    put(message, "key", key);
    put(message, "value", value);
    return new Promise((resolve, reject) => {
      const text = JSON.stringify(message); // What has no JSON fails here, and alone.
      const entry = { id, text, resolve, reject };
      if (this.state === "open") this._sendPublish(entry);
      else this._unsent.push(entry);
    });
  }

  /* onrecord({topic, partition, offset, timestamp, key, value, headers}, subscription) for each record, one at a time.
     from: "new", "earliest", {offset: "17"}, {offset: {0: "17"}}, {time: milliseconds or ISO 8601}; partitions: [0, 1];
     filter: {header: "kind", equals: "order"}; group: a name, and then ack: "auto" (once the handler is done) or
     "manual"; credit: how many records may be under way; onerror(error); onend(). */
  subscribe(topic, onrecord, options = {}) {
    if (this.state === "closed") throw closedError();
    const subscription = new Subscription(this, this._nextId(), topic, onrecord, options);
    this._subscriptions.set(subscription.id, subscription);
    if (this.state === "open") subscription._begin();
    return subscription;
  }

  close() {
    if (this.state === "closed") return;
    clearTimeout(this._timer);
    this._setState("closed");
    this._socket.close(1000, "");
    this._fail([...this._asked.values(), ...this._unsent], closedError());
    for (const subscription of [...this._subscriptions.values()]) subscription._end();
  }

  _nextId() {
    this._lastId += 1;
    return this._lastId;
  }

  _setState(state) {
    this.state = state;
    this.onstate(state);
  }

  _connect() {
    this._setState("connecting");
    const socket = new WebSocket(this.url, "anabranch.v1");
    this._socket = socket;
    socket.onopen = () => this._opened();
    socket.onmessage = (event) => this._heard(JSON.parse(event.data));
    socket.onclose = () => this._lost(socket);
  }

  _opened() {
    if (this.state === "closed") return;
    this._pauseMs = PAUSE_MS;
    this._setState("open");
    for (const subscription of this._subscriptions.values()) subscription._begin();
    for (const entry of this._unsent.splice(0)) this._sendPublish(entry);
  }

  _lost(socket) {
    if (this.state === "closed" || socket !== this._socket) return;
    const lost = new AnabranchError("CONNECTION_LOST", "The connection broke: whether the record was written is not known.");
    this._fail(this._asked.values(), lost);
    for (const subscription of this._subscriptions.values()) subscription._pause();
    this._setState("waiting");
    const pauseMs = this._pauseMs * (0.5 + Math.random()); // Not all clients of a node come back in the same moment.
    this._pauseMs = Math.min(2 * this._pauseMs, PAUSE_MS_MAX);
    this._timer = setTimeout(() => this._connect(), pauseMs);
  }

  _fail(entries, error) {
    for (const entry of [...entries]) entry.reject(error);
    this._asked.clear();
    if (this.state === "closed") this._unsent = [];
  }

  _send(message) {
    if (this.state === "open") this._socket.send(JSON.stringify(message));
  }

  _sendPublish(entry) {
    this._asked.set(entry.id, entry);
    this._socket.send(entry.text);
  }

  _heard(message) {
    const entry = this._asked.get(message.id);
    if (entry !== undefined) {
      this._asked.delete(message.id);
      if (message.type === "error") entry.reject(new AnabranchError(message.code, message.message));
      else entry.resolve({ partition: message.partition, offset: message.offset, timestamp: message.timestamp });
      return;
    }
    const subscription = this._subscriptions.get(message.id);
    if (subscription !== undefined) subscription._heard(message);
    else if (message.type === "error" && message.id === null) console.error("anabranch:", message.code, message.message);
    // Any other id was a subscription's that is over: it ended on both sides at once, and nobody is left to be told.
  }
}

class Subscription {
  constructor(client, id, topic, onrecord, options) {
    const { from = "new", partitions, group, filter, credit = CREDIT, ack = "auto" } = options;
    const { onerror = (error) => console.error("anabranch:", error.code, error.message), onend = () => {} } = options;
    Object.assign(this, { id, topic, onerror, onend });
    this._client = client;
    this._onrecord = onrecord;
    this._asked = { from, partitions, group, filter };
    JSON.stringify([topic, this._asked]); // What has no JSON is refused now, and not with every connection.
    this._credit = credit;
    this._acksItself = group !== undefined && ack === "auto";
    this._positions = new Map(); // By partition: the offset to go on at.
    this._waiting = []; // Messages whose records are not handled yet.
    this._isHandling = false;
    this._epoch = 0; // Counts connections and assignments: what belongs to an older one is not acknowledged.
    this._unhandled = 0; // Records that have come and are not done with.
    this._handled = 0; // Records that are done with, and for which no credit was given back yet.
    this._isOver = false;
  }

  /* Everything of the record's partition up to this record is done with. Only in a group with ack: "manual". */
  ack(record) {
    if (record.epoch !== this._epoch) return; // It is delivered again, to whoever has its partition now.
    this._client._send({ type: "ack", id: this.id, partition: record.partition, offset: record.offset });
  }

  close() {
    if (!this._isOver) this._client._send({ type: "unsubscribe", id: this.id });
    this._end();
  }

  _begin() {
    const { from, ...others } = this._asked;
    const message = { type: "subscribe", id: this.id, topic: this.topic, from, credit: Math.max(0, this._credit - this._unhandled), ...others };
    if (others.group === undefined && this._positions.size > 0) {
      message.from = { offset: Object.fromEntries(this._positions) };
      if (others.partitions === undefined) message.from.others = "earliest"; // Partitions that came meanwhile.
    }
    this._handled = 0; // The credit counts what was done meanwhile.
    this._client._send(message);
  }

  /* The connection is lost. What a group has delivered comes again; of all else we have what we have. */
  _pause() {
    if (this._asked.group !== undefined) this._startAnew();
  }

  _startAnew() {
    const dropped = this._waiting.reduce((count, each) => count + each.records.length, 0);
    this._waiting = [];
    this._epoch += 1;
    this._done(dropped);
  }

  _heard(message) {
    switch (message.type) {
      case "subscribed":
        for (const [partition, offset] of Object.entries(message.offsets ?? {})) this._positions.set(partition, offset);
        break;
      case "records":
        this._positions.set(String(message.partition), message.next);
        this._waiting.push({ ...message, epoch: this._epoch });
        this._unhandled += message.records.length;
        this._handle();
        break;
      case "revoked":
        this._startAnew();
        break;
      case "error":
        this.onerror(new AnabranchError(message.code, message.message));
        break;
      case "unsubscribed":
        this._end();
        break;
    }
  }

  async _handle() {
    if (this._isHandling) return;
    this._isHandling = true;
    while (this._waiting.length > 0 && !this._isOver) {
      await this._handleOne(this._waiting.shift());
    }
    this._isHandling = false;
  }

  async _handleOne({ partition, records, epoch }) {
    for (const each of records) {
      if (this._isOver || (this._acksItself && epoch !== this._epoch)) break;
      const record = { topic: this.topic, partition, ...each };
      Object.defineProperty(record, "epoch", { value: epoch });
      try {
        const answer = this._onrecord(record, this);
        if (answer instanceof Promise) await answer;
      } catch (error) {
        this.onerror(error);
        if (this._acksItself) {
          this.close(); // What failed must not be acknowledged by what follows it: it is delivered again.
          return;
        }
      }
    }
    if (this._acksItself && records.length > 0) this.ack({ partition, offset: records.at(-1).offset, epoch });
    this._done(records.length);
  }

  /* Credit goes back by halves: not a message for every record. */
  _done(count) {
    this._unhandled -= count;
    this._handled += count;
    if (this._handled < this._credit / 2 || this._client.state !== "open") return;
    this._client._send({ type: "credit", id: this.id, records: this._handled });
    this._handled = 0;
  }

  _end() {
    if (this._isOver) return;
    this._isOver = true;
    this._waiting = [];
    this._client._subscriptions.delete(this.id);
    this.onend();
  }
}

function pageUrl() {
  const base = new URL(import.meta.url);
  return (base.protocol === "https:" ? "wss://" : "ws://") + base.host + "/v1/ws";
}

function closedError() {
  return new AnabranchError("CLOSED", "This client has been closed.");
}

function put(message, name, given) {
  const isBytes = given instanceof ArrayBuffer || ArrayBuffer.isView(given);
  if (isBytes) message[name + "_base64"] = base64(given);
  else message[name] = given;
}

function base64(given) {
  const bytes = given instanceof ArrayBuffer ? new Uint8Array(given) : new Uint8Array(given.buffer, given.byteOffset, given.byteLength);
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192) {
    text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  }
  return btoa(text);
}
