/* A raw load generator: whole Kafka requests, built once, over plain sockets; the broker is the only thing measured.
 *
 *   load produce --port P --topic T [--connections N] [--in-flight M] [--acks 1|-1] [--records R] [--record-bytes B]
 *                [--partitions K] [--topics K] [--ports P,P,..] [--seconds S] [--requests N]
 *   load fetch   --port P --topic T [--connections N] [--partitions K] [--fetch-bytes B] [--from OFFSET] [--to OFFSET]
 *                [--random] [--once] [--seconds S] [--requests N]
 *   load latency --port P --topic T [--rate N] [--record-bytes B] [--acks 1|-1] [--warmup S] [--seconds S]
 *   load sync    --file F [--record-bytes B] [--requests N]
 *
 * `produce` keeps M requests of R records unanswered on each connection, spread in turn over K partitions, or over
 * the topics T-0 .. T-(K-1). With `--ports`, one for each partition, a connection goes to the broker that leads its
 * partition and writes to that one alone. `fetch` reads on and on from K partitions with one request, each time beginning
 * with the next one as clients do, or from random offsets of a range; with `--once` it ends when it has read them all.
 * `latency` sends one record at each tick of a clock while a second connection waits for it in a fetch; times count
 * from the tick, so that a broker that stalls is charged for all that came due meanwhile. `sync` is the disk alone:
 * write and fdatasync. One thread, one epoll. The answer is one line of JSON; an error of the broker is counted and
 * the first few are told on stderr, a lost connection ends the program with 1.
 *
 * Produce goes out as version 7 and Fetch as version 11: the last ones before flexible versions, which every broker
 * and client of the last years speaks.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    UNANSWERED_MAX = 4096,
    EVENTS_MAX = 256,
    ERRORS_TOLD_MAX = 3,
    BATCH_HEADER_BYTES = 61,
    REQUEST_HEADER_BYTES_MAX = 512,
    FETCH_PARTITION_BYTES = 28,
    ANSWER_BYTES_MIN = 1 << 16,
    LAST_ANSWERS_S_MAX = 10,
    FETCH_WAIT_MS = 500,
};

static struct {
    const char *mode, *topic, *file, *ports;
    int port, connections, in_flight, acks, records, record_bytes, partitions, topics, fetch_bytes, rate;
    int64_t from, to, requests;
    bool random, once;
    double seconds, warmup;
} options = {
    .topic = "bench", .connections = 1, .in_flight = 1, .acks = 1, .records = 1, .record_bytes = 100,
    .partitions = 1, .topics = 1, .fetch_bytes = 1 << 20, .rate = 1000, .to = -1, .seconds = 2, .warmup = 1,
};

static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        die("no memory for %zu bytes", bytes);
    return memory;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

/* --- bytes ------------------------------------------------------------------------------------------------------ */

struct bytes {
    uint8_t *data;
    size_t size;
};

static void put(struct bytes *to, uint64_t value, int width)
{
    for (int shift = 8 * (width - 1); shift >= 0; shift -= 8)
        to->data[to->size++] = value >> shift;
}

static void put_string(struct bytes *to, const char *text)
{
    size_t size = strlen(text);
    put(to, size, 2);
    memcpy(to->data + to->size, text, size);
    to->size += size;
}

static int varint(uint8_t *to, int64_t value)
{
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    int size = 0;
    for (; rest >= 128; rest >>= 7)
        to[size++] = rest | 128;
    to[size++] = rest;
    return size;
}

static void put_varint(struct bytes *to, int64_t value)
{
    to->size += varint(to->data + to->size, value);
}

static void put_at(struct bytes *to, size_t position, uint32_t value)
{
    struct bytes there = {to->data + position, 0};
    put(&there, value, 4);
}

static uint64_t get(const uint8_t *from, int width)
{
    uint64_t value = 0;
    for (int i = 0; i < width; i++)
        value = value << 8 | from[i];
    return value;
}

static uint32_t crc32c(const uint8_t *data, size_t size)
{
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t entry = i;
            for (int bit = 0; bit < 8; bit++)
                entry = entry & 1 ? entry >> 1 ^ 0x82f63b78 : entry >> 1;
            table[i] = entry;
        }
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < size; i++)
        crc = crc >> 8 ^ table[(crc ^ data[i]) & 255];
    return ~crc;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void put_record(struct bytes *to, int delta, int value_bytes)
{
    uint8_t scratch[10];
    int body = 4 + varint(scratch, delta) + varint(scratch, value_bytes) + value_bytes;
    put_varint(to, body);
    put(to, 0, 1);          /* attributes */
    put_varint(to, 0);      /* timestamp delta */
    put_varint(to, delta);
    put_varint(to, -1);     /* no key */
    put_varint(to, value_bytes);
    for (int i = 0; i < value_bytes; i++)
        to->data[to->size++] = 'a' + (i * 7 + delta * 13 + (i >> 3)) % 26;
    put_varint(to, 0);      /* no headers */
}

static void seal(struct bytes *batch)
{
    put_at(batch, 8, batch->size - 12);
    put_at(batch, 17, crc32c(batch->data + 21, batch->size - 21));
}

static struct bytes build_batch(int records, int record_bytes)
{
    struct bytes batch = {allocate(BATCH_HEADER_BYTES + (size_t)records * (record_bytes + 32)), 0};
    uint64_t timestamp_ms = (uint64_t)time(NULL) * 1000;
    put(&batch, 0, 8);              /* base offset */
    put(&batch, 0, 4);              /* length, by seal */
    put(&batch, -1, 4);             /* leader epoch */
    put(&batch, 2, 1);              /* magic */
    put(&batch, 0, 4);              /* CRC, by seal */
    put(&batch, 0, 2);              /* attributes */
    put(&batch, records - 1, 4);
    put(&batch, timestamp_ms, 8);
    put(&batch, timestamp_ms, 8);
    put(&batch, -1, 8);             /* producer id, epoch and sequence */
    put(&batch, -1, 2);
    put(&batch, -1, 4);
    put(&batch, records, 4);
    for (int i = 0; i < records; i++)
        put_record(&batch, i, record_bytes);
    seal(&batch);
    return batch;
}

static void put_request_header(struct bytes *to, int api_key, int version)
{
    put(to, 0, 4);                  /* size, by the caller */
    put(to, api_key, 2);
    put(to, version, 2);
    put(to, 1, 4);                  /* correlation: answers keep the order of the requests */
    put_string(to, "load");
}

static struct bytes produce_header(const char *topic, int partition, size_t batch_bytes)
{
    struct bytes header = {allocate(REQUEST_HEADER_BYTES_MAX), 0};
    put_request_header(&header, 0, 7);
    put(&header, -1, 2);            /* no transaction */
    put(&header, options.acks, 2);
    put(&header, 30000, 4);
    put(&header, 1, 4);
    put_string(&header, topic);
    put(&header, 1, 4);
    put(&header, partition, 4);
    put(&header, batch_bytes, 4);
    put_at(&header, 0, header.size + batch_bytes - 4);
    return header;
}

/* The offsets of K partitions, and with which of them to begin. */
static void build_fetch(struct bytes *request, const int64_t *offsets, int first, int wait_ms)
{
    request->size = 0;
    put_request_header(request, 1, 11);
    put(request, -1, 4);            /* a consumer, not a replica */
    put(request, wait_ms, 4);
    put(request, 1, 4);
    put(request, (int64_t)options.fetch_bytes * options.partitions, 4);
    put(request, 0, 1);             /* read uncommitted */
    put(request, 0, 4);             /* no session */
    put(request, -1, 4);
    put(request, 1, 4);
    put_string(request, options.topic);
    put(request, options.partitions, 4);
    for (int i = 0; i < options.partitions; i++) {
        int partition = (first + i) % options.partitions;
        put(request, partition, 4);
        put(request, -1, 4);        /* leader epoch */
        put(request, offsets[partition], 8);
        put(request, -1, 8);        /* log start */
        put(request, options.fetch_bytes, 4);
    }
    put(request, 0, 4);             /* nothing forgotten */
    put_string(request, "");        /* rack */
    put_at(request, 0, request->size - 4);
}

/* --- connections -------------------------------------------------------------------------------------------------- */

struct connection {
    int fd;
    struct bytes answer;            /* what has arrived of the answers */
    size_t answer_capacity;
    struct bytes head, body;        /* the request on its way out: two parts, sent as one */
    size_t sent;
    uint64_t asked_ns[UNANSWERED_MAX];
    unsigned asked, answered;       /* they count on; modulo UNANSWERED_MAX they are places in asked_ns */
    int64_t *offsets;               /* of the next fetch, one for each partition */
    int partitions_at_end;          /* with --once */
    int partition;                  /* with --ports, the only one it writes to */
};

static int port_of(int partition)
{
    const char *text = options.ports;
    for (int i = 0; i < partition && text; i++) {
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    if (!text)
        die("--ports has none for partition %d", partition);
    return atoi(text);
}

static void connect_to_broker(struct connection *connection)
{
    int port = options.ports ? port_of(connection->partition) : options.port;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address))
        die("cannot connect to port %d: %s", port, strerror(errno));
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    connection->answer_capacity = ANSWER_BYTES_MIN;
    connection->answer.data = allocate(connection->answer_capacity);
}

static unsigned unanswered(const struct connection *connection)
{
    return connection->asked - connection->answered;
}

static bool is_sending(const struct connection *connection)
{
    return connection->head.size > 0;
}

static void ask(struct connection *connection, struct bytes head, struct bytes body, uint64_t asked_ns)
{
    connection->head = head;
    connection->body = body;
    connection->sent = 0;
    connection->asked_ns[connection->asked++ % UNANSWERED_MAX] = asked_ns;
}

/* Sends what the socket takes; true when the whole request is out. */
static bool send_on(struct connection *connection)
{
    size_t head_left = connection->sent < connection->head.size ? connection->head.size - connection->sent : 0;
    size_t body_sent = head_left ? 0 : connection->sent - connection->head.size;
    struct iovec parts[2] = {
        {connection->head.data + connection->head.size - head_left, head_left},
        {connection->body.data + body_sent, connection->body.size - body_sent},
    };
    ssize_t count = writev(connection->fd, parts, 2);
    if (count < 0) {
        if (errno != EAGAIN)
            die("the broker closed a connection: %s", strerror(errno));
        return false;
    }
    connection->sent += count;
    if (connection->sent < connection->head.size + connection->body.size)
        return false;
    connection->head.size = 0;
    return true;
}

/* Reads what is there; false when the socket is empty. Makes room for the whole answer as soon as its size is known. */
static bool receive(struct connection *connection)
{
    struct bytes *answer = &connection->answer;
    size_t wanted = answer->size < 4 ? 4 : 4 + get(answer->data, 4);
    if (wanted > connection->answer_capacity) {
        connection->answer_capacity = wanted + ANSWER_BYTES_MIN;
        answer->data = realloc(answer->data, connection->answer_capacity);
        if (!answer->data)
            die("no memory for an answer of %zu bytes", wanted);
    }
    ssize_t count = recv(connection->fd, answer->data + answer->size, connection->answer_capacity - answer->size, 0);
    if (count == 0)
        die("the broker closed a connection");
    if (count < 0 && errno != EAGAIN)
        die("a connection broke: %s", strerror(errno));
    if (count < 0)
        return false;
    answer->size += count;
    return true;
}

/* --- what happened ------------------------------------------------------------------------------------------------ */

struct samples {
    uint32_t *values_ns;
    size_t count, capacity;
};

static struct {
    uint64_t requests, records, bytes, errors;
    struct samples answers, arrivals;
} seen;

static void add_sample(struct samples *samples, uint64_t value_ns)
{
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? 2 * samples->capacity : 1 << 16;
        samples->values_ns = realloc(samples->values_ns, samples->capacity * sizeof *samples->values_ns);
        if (!samples->values_ns)
            die("no memory for %zu samples", samples->capacity);
    }
    samples->values_ns[samples->count++] = value_ns < UINT32_MAX ? value_ns : UINT32_MAX;
}

static int compare_samples(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

static void print_samples(const char *prefix, struct samples *samples)
{
    static const struct { const char *name; double share; } wanted[] = {{"p50", .5}, {"p99", .99}, {"p999", .999}};
    qsort(samples->values_ns, samples->count, sizeof *samples->values_ns, compare_samples);
    for (size_t i = 0; samples->count && i < sizeof wanted / sizeof *wanted; i++)
        printf(", \"%s%s_us\": %.1f", prefix, wanted[i].name,
               samples->values_ns[(size_t)((samples->count - 1) * wanted[i].share)] / 1e3);
}

static double own_cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void print_seen(uint64_t started_ns)
{
    printf("{\"seconds\": %.6f, \"requests\": %" PRIu64 ", \"records\": %" PRIu64 ", \"bytes\": %" PRIu64
           ", \"errors\": %" PRIu64 ", \"generator_cpu_seconds\": %.6f",
           (now_ns() - started_ns) / 1e9, seen.requests, seen.records, seen.bytes, seen.errors, own_cpu_seconds());
    print_samples("", &seen.answers);
    print_samples("end_to_end_", &seen.arrivals);
    puts("}");
}

static void count_error(int code)
{
    if (seen.errors++ < ERRORS_TOLD_MAX)
        fprintf(stderr, "load: the broker answered with error %d\n", code);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static int64_t read_produce_answer(const uint8_t *answer)
{
    const uint8_t *row = answer + 4 + 4;                    /* correlation, count of topics */
    row += 2 + get(row, 2) + 4 + 4;                         /* topic, count of partitions, partition */
    int error = (int16_t)get(row, 2);
    if (error)
        count_error(error);
    return get(row + 2, 8);
}

struct fetched {
    int partition;
    int64_t high_watermark;
    const uint8_t *batches;
    size_t bytes;
};

static int fetched_partitions(const uint8_t *answer, const uint8_t **row)
{
    *row = answer + 4 + 4 + 2 + 4;                          /* correlation, throttle, error, session */
    if (!get(*row, 4))
        return 0;                                           /* no topic */
    *row += 4 + 2 + get(*row + 4, 2);
    int count = get(*row, 4);
    *row += 4;
    return count;
}

/* Reads one partition of an answer, and goes on to the next. */
static struct fetched read_fetched(const uint8_t **row)
{
    const uint8_t *at = *row;
    struct fetched fetched = {.partition = get(at, 4), .high_watermark = get(at + 6, 8)};
    int error = (int16_t)get(at + 4, 2);
    if (error)
        count_error(error);
    at += 4 + 2 + 8 + 8 + 8;                                /* partition, error, high watermark, stable, log start */
    int32_t aborted = get(at, 4);
    at += 4 + (aborted > 0 ? aborted * 16 : 0) + 4;         /* aborted transactions, preferred replica */
    int32_t bytes = get(at, 4);
    fetched.batches = at + 4;
    fetched.bytes = bytes > 0 ? bytes : 0;
    *row = fetched.batches + fetched.bytes;
    return fetched;
}

/* Walks whole batches; the last one of an answer may be cut off. Returns the offset after them. */
static int64_t walk(struct fetched fetched, int64_t offset, void (*visit)(const uint8_t *batch))
{
    const uint8_t *batch = fetched.batches, *end = batch + fetched.bytes;
    while (end - batch >= BATCH_HEADER_BYTES) {
        size_t size = 12 + get(batch + 8, 4);
        if (size > (size_t)(end - batch))
            break;
        offset = get(batch, 8) + get(batch + 23, 4) + 1;
        seen.records += get(batch + 57, 4);
        if (visit)
            visit(batch);
        batch += size;
    }
    return offset;
}

/* --- produce and fetch: as much as the broker takes ----------------------------------------------------------------- */

static struct bytes batch;
static struct bytes *produce_headers;       /* one per partition of each topic */
static size_t produce_header_count, produce_header_next;
static uint64_t end_ns;
static int64_t requests_left;

static bool is_fetch(void)
{
    return !strcmp(options.mode, "fetch");
}

static void build_produce_requests(void)
{
    batch = build_batch(options.records, options.record_bytes);
    produce_header_count = (size_t)options.topics * options.partitions;
    produce_headers = allocate(produce_header_count * sizeof *produce_headers);
    for (size_t i = 0; i < produce_header_count; i++) {
        char topic[300];
        if (options.topics == 1)
            snprintf(topic, sizeof topic, "%s", options.topic);
        else
            snprintf(topic, sizeof topic, "%s-%zu", options.topic, i % options.topics);
        produce_headers[i] = produce_header(topic, i / options.topics, batch.size);
    }
}

static void choose_offset(struct connection *connection)
{
    if (options.random)
        connection->offsets[0] =
            options.from + (((int64_t)random() << 31) ^ random()) % (options.to - options.from);
}

static void ask_next(struct connection *connection, struct bytes *fetch_request)
{
    requests_left--;
    if (is_fetch()) {
        choose_offset(connection);
        build_fetch(fetch_request, connection->offsets, connection->asked % options.partitions, FETCH_WAIT_MS);
        ask(connection, *fetch_request, (struct bytes){0}, now_ns());
    } else {
        size_t next = options.ports ? (size_t)connection->partition : produce_header_next++;
        struct bytes header = produce_headers[next % produce_header_count];
        ask(connection, header, batch, now_ns());
    }
}

static void send_all_allowed(struct connection *connection, struct bytes *fetch_request)
{
    for (;;) {
        if (!is_sending(connection)) {
            bool is_full = unanswered(connection) >= (unsigned)options.in_flight;
            if (is_full || requests_left <= 0 || now_ns() >= end_ns)
                return;
            ask_next(connection, fetch_request);
        }
        if (!send_on(connection))
            return;
    }
}

static void take_partition(struct connection *connection, struct fetched fetched)
{
    int64_t *offset = &connection->offsets[fetched.partition];
    int64_t end = options.to >= 0 ? options.to : fetched.high_watermark;
    seen.bytes += fetched.bytes;
    *offset = walk(fetched, *offset, NULL);
    if (*offset < end)
        return;
    if (options.once)
        connection->partitions_at_end++;
    else
        *offset = options.from;
}

static void take_answer(struct connection *connection, const uint8_t *answer)
{
    add_sample(&seen.answers, now_ns() - connection->asked_ns[connection->answered++ % UNANSWERED_MAX]);
    seen.requests++;
    if (!is_fetch()) {
        read_produce_answer(answer);
        seen.records += options.records;
        seen.bytes += batch.size;
        return;
    }
    const uint8_t *row;
    int count = fetched_partitions(answer, &row);
    connection->partitions_at_end = 0;
    while (count--)
        take_partition(connection, read_fetched(&row));
    if (connection->partitions_at_end == options.partitions)
        requests_left = 0;
}

static void take_answers(struct connection *connection, void (*take)(struct connection *, const uint8_t *))
{
    struct bytes *answer = &connection->answer;
    while (receive(connection)) {
        size_t done = 0;
        while (answer->size - done >= 4) {
            size_t size = 4 + get(answer->data + done, 4);
            if (answer->size - done < size)
                break;
            take(connection, answer->data + done + 4);
            done += size;
        }
        memmove(answer->data, answer->data + done, answer->size - done);
        answer->size -= done;
    }
}

static void watch(int epoll, struct connection *connection)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = connection};
    epoll_ctl(epoll, EPOLL_CTL_ADD, connection->fd, &event);
}

static bool all_done(const struct connection *connections)
{
    if (now_ns() < end_ns && requests_left > 0)
        return false;
    for (int i = 0; i < options.connections; i++)
        if (unanswered(&connections[i]))
            return false;
    return true;
}

static int64_t *starting_offsets(int64_t offset)
{
    int64_t *offsets = allocate(options.partitions * sizeof *offsets);
    for (int i = 0; i < options.partitions; i++)
        offsets[i] = offset;
    return offsets;
}

static uint8_t *fetch_request_room(void)
{
    return allocate(REQUEST_HEADER_BYTES_MAX + (size_t)options.partitions * FETCH_PARTITION_BYTES);
}

static void run_throughput(void)
{
    int epoll = epoll_create1(0);
    struct connection *connections = allocate(options.connections * sizeof *connections);
    struct bytes *fetch_requests = allocate(options.connections * sizeof *fetch_requests);
    struct epoll_event events[EVENTS_MAX];

    if (!is_fetch())
        build_produce_requests();
    for (int i = 0; i < options.connections; i++) {
        connections[i].partition = i % options.partitions;
        connections[i].offsets = starting_offsets(options.from);
        fetch_requests[i].data = fetch_request_room();
        connect_to_broker(&connections[i]);
        watch(epoll, &connections[i]);
    }
    requests_left = options.requests ? options.requests : INT64_MAX;
    uint64_t started_ns = now_ns();
    end_ns = started_ns + options.seconds * 1e9;
    for (int i = 0; i < options.connections; i++)
        send_all_allowed(&connections[i], &fetch_requests[i]);
    while (!all_done(connections)) {
        int count = epoll_wait(epoll, events, EVENTS_MAX, 100);
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;
            take_answers(connection, take_answer);
            send_all_allowed(connection, &fetch_requests[connection - connections]);
        }
        if (now_ns() > end_ns + LAST_ANSWERS_S_MAX * UINT64_C(1000000000))
            die("no answer for %d s", LAST_ANSWERS_S_MAX);
    }
    print_seen(started_ns);
}

/* --- latency: one record per tick ------------------------------------------------------------------------------------ */

static uint64_t counted_from_ns;
static int64_t first_offset = -1;
static size_t value_position;       /* of the value in the one record of the batch */

static void stamp(uint64_t due_ns)
{
    memcpy(batch.data + value_position, &due_ns, sizeof due_ns);
    seal(&batch);
}

static void take_acknowledgement(struct connection *connection, const uint8_t *answer)
{
    uint64_t due_ns = connection->asked_ns[connection->answered++ % UNANSWERED_MAX];
    int64_t offset = read_produce_answer(answer);
    if (first_offset < 0)
        first_offset = offset;
    if (due_ns < counted_from_ns)
        return;
    seen.requests++;
    add_sample(&seen.answers, now_ns() - due_ns);
}

static void take_arrival(const uint8_t *arrived)
{
    uint64_t due_ns;
    memcpy(&due_ns, arrived + value_position, sizeof due_ns);
    if (due_ns < counted_from_ns)
        return;
    seen.bytes += batch.size;
    add_sample(&seen.arrivals, now_ns() - due_ns);
}

static void take_fetched(struct connection *connection, const uint8_t *answer)
{
    const uint8_t *row;
    connection->answered++;
    if (fetched_partitions(answer, &row))
        connection->offsets[0] = walk(read_fetched(&row), connection->offsets[0], take_arrival);
}

static void fetch_on(struct connection *consumer, struct bytes *request)
{
    if (!unanswered(consumer)) {
        build_fetch(request, consumer->offsets, 0, FETCH_WAIT_MS);
        ask(consumer, *request, (struct bytes){0}, now_ns());
    }
    if (is_sending(consumer))
        send_on(consumer);
}

static void send_due(struct connection *producer, uint64_t *due_ns, uint64_t step_ns)
{
    for (; *due_ns < end_ns && now_ns() >= *due_ns; *due_ns += step_ns) {
        if (unanswered(producer) == UNANSWERED_MAX)
            die("%d records without an answer: the broker does not keep up", UNANSWERED_MAX);
        stamp(*due_ns);
        ask(producer, produce_headers[0], batch, *due_ns);
        if (!send_on(producer))
            die("the socket is full: the broker does not keep up");
    }
}

static int ticking_clock(uint64_t first_ns, uint64_t step_ns)
{
    int clock = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec times = {
        .it_interval = {step_ns / 1000000000, step_ns % 1000000000},
        .it_value = {first_ns / 1000000000, first_ns % 1000000000},
    };
    prctl(PR_SET_TIMERSLACK, 1);
    timerfd_settime(clock, TFD_TIMER_ABSTIME, &times, NULL);
    return clock;
}

/* The first record finds out at which offset the consumer starts, and has everything opened and compiled. */
static void send_first(struct connection *producer)
{
    ask(producer, produce_headers[0], batch, 0);
    send_on(producer);
    for (int tries = 0; unanswered(producer) && tries < LAST_ANSWERS_S_MAX * 1000; tries++) {
        usleep(1000);
        take_answers(producer, take_acknowledgement);
    }
    if (first_offset < 0)
        die("the first record was not acknowledged");
}

static void run_latency(void)
{
    uint64_t step_ns = 1000000000 / options.rate;
    int epoll = epoll_create1(0);
    struct connection *producer = allocate(sizeof *producer), *consumer = allocate(sizeof *consumer);
    struct bytes fetch_request = {fetch_request_room(), 0};
    struct epoll_event events[EVENTS_MAX];

    if (options.record_bytes < (int)sizeof(uint64_t))
        die("a record needs %zu bytes for its time", sizeof(uint64_t));
    build_produce_requests();
    value_position = batch.size - 1 - options.record_bytes;
    counted_from_ns = UINT64_MAX;
    connect_to_broker(producer);
    connect_to_broker(consumer);
    send_first(producer);
    consumer->offsets = starting_offsets(first_offset + 1);
    watch(epoll, producer);
    watch(epoll, consumer);

    uint64_t started_ns = now_ns(), due_ns = started_ns + step_ns;
    counted_from_ns = started_ns + options.warmup * 1e9;
    end_ns = counted_from_ns + options.seconds * 1e9;
    int clock = ticking_clock(due_ns, step_ns);
    epoll_ctl(epoll, EPOLL_CTL_ADD, clock, &(struct epoll_event){.events = EPOLLIN});
    fetch_on(consumer, &fetch_request);
    while (now_ns() < end_ns || unanswered(producer) || seen.arrivals.count < seen.requests) {
        uint64_t ticks;
        int count = epoll_wait(epoll, events, EVENTS_MAX, 100);
        (void)count;
        if (read(clock, &ticks, sizeof ticks) > 0)
            send_due(producer, &due_ns, step_ns);
        take_answers(producer, take_acknowledgement);
        take_answers(consumer, take_fetched);
        fetch_on(consumer, &fetch_request);
        if (now_ns() > end_ns + LAST_ANSWERS_S_MAX * UINT64_C(1000000000))
            die("%zu of %" PRIu64 " records did not arrive", seen.requests - seen.arrivals.count, seen.requests);
    }
    print_seen(counted_from_ns);
}

/* --- sync: the disk alone ------------------------------------------------------------------------------------------- */

static void run_sync(void)
{
    int fd = open(options.file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    if (fd < 0)
        die("cannot open %s: %s", options.file, strerror(errno));
    batch = build_batch(1, options.record_bytes);
    uint64_t started_ns = now_ns();
    for (int64_t i = 0; i < (options.requests ? options.requests : 1000); i++) {
        uint64_t before_ns = now_ns();
        if (write(fd, batch.data, batch.size) != (ssize_t)batch.size || fdatasync(fd))
            die("cannot write and sync %s: %s", options.file, strerror(errno));
        add_sample(&seen.answers, now_ns() - before_ns);
        seen.requests++;
        seen.bytes += batch.size;
    }
    print_seen(started_ns);
    close(fd);
    unlink(options.file);
}

/* --- the command line ------------------------------------------------------------------------------------------------ */

static void set_option(const char *name, const char *value)
{
    static const struct { const char *name; int *number; } numbers[] = {
        {"port", &options.port}, {"connections", &options.connections}, {"in-flight", &options.in_flight},
        {"acks", &options.acks}, {"records", &options.records}, {"record-bytes", &options.record_bytes},
        {"partitions", &options.partitions}, {"topics", &options.topics}, {"rate", &options.rate},
        {"fetch-bytes", &options.fetch_bytes},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(name, numbers[i].name)) {
            *numbers[i].number = atoi(value);
            return;
        }
    if (!strcmp(name, "topic"))
        options.topic = value;
    else if (!strcmp(name, "ports"))
        options.ports = value;
    else if (!strcmp(name, "file"))
        options.file = value;
    else if (!strcmp(name, "from"))
        options.from = atoll(value);
    else if (!strcmp(name, "to"))
        options.to = atoll(value);
    else if (!strcmp(name, "requests"))
        options.requests = atoll(value);
    else if (!strcmp(name, "seconds"))
        options.seconds = atof(value);
    else if (!strcmp(name, "warmup"))
        options.warmup = atof(value);
    else
        die("no option --%s", name);
}

static void read_options(int count, char **words)
{
    options.mode = count > 1 ? words[1] : "";
    for (int i = 2; i < count; i++) {
        if (strncmp(words[i], "--", 2))
            die("%s is not an option", words[i]);
        if (!strcmp(words[i], "--random") || !strcmp(words[i], "--once")) {
            *(words[i][2] == 'r' ? &options.random : &options.once) = true;
            continue;
        }
        if (i + 1 == count)
            die("%s lacks a value", words[i]);
        set_option(words[i] + 2, words[i + 1]);
        i++;
    }
    if (options.in_flight > UNANSWERED_MAX || (is_fetch() && options.in_flight > 1))
        die("too many in flight: %d (a fetch needs to know where the last one ended)", options.in_flight);
    if (options.random && (options.to <= options.from || options.partitions > 1))
        die("--random needs --from and --to, and one partition");
    if (options.once && options.connections > 1)
        die("--once is for one connection");
    if (!strcmp(options.mode, "latency") && options.partitions > 1)
        die("latency is measured with one partition");
}

int main(int count, char **words)
{
    read_options(count, words);
    if (!strcmp(options.mode, "produce") || is_fetch())
        run_throughput();
    else if (!strcmp(options.mode, "latency"))
        run_latency();
    else if (!strcmp(options.mode, "sync") && options.file)
        run_sync();
    else
        die("say produce, fetch, latency, or sync --file F");
    return 0;
}
