/* librdkafka as a producer or a consumer, with its defaults; what it reached is told as one line of JSON.
 *
 *   rdkafka produce|consume BOOTSTRAP TOPIC TOPICS PARTITIONS RECORDS RECORD_BYTES CODEC
 *
 * With TOPICS above 1 the topics are TOPIC-0 .. and records go to all partitions of all topics in turn; with one topic
 * the client's own partitioner chooses. The producer counts from the first record to the last acknowledgement
 * (acks=all, the default); the consumer reads every partition from its start, from the first record to the last.
 */
#include <librdkafka/rdkafka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    TEXT_BYTES = 1 << 16,
    RECORD_BYTES_MAX = 1 << 20,
    POLL_EVERY = 1000,
    MESSAGES_MAX = 1000,
    WAIT_MS = 100,
    PATIENCE_S = 60,
};

static int topics, partitions;
static int64_t records, acknowledged, failed;
static int record_bytes;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "rdkafka: %s: %s\n", what, why);
    exit(1);
}

static double now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
    char why[512];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK)
        die(name, why);
}

static void name_topic(char *name, size_t size, const char *topic, int number)
{
    if (topics == 1)
        snprintf(name, size, "%s", topic);
    else
        snprintf(name, size, "%s-%d", topic, number);
}

static rd_kafka_t *client(rd_kafka_type_t type, rd_kafka_conf_t *conf)
{
    char why[512];
    rd_kafka_t *client = rd_kafka_new(type, conf, why, sizeof why);
    if (!client)
        die("no client", why);
    return client;
}

static void print(double seconds, int64_t count)
{
    printf("{\"seconds\": %.6f, \"records\": %lld, \"errors\": %lld, \"library\": \"%s\"}\n", seconds,
           (long long)count, (long long)failed, rd_kafka_version_str());
}

/* --- produce ------------------------------------------------------------------------------------------------------ */

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque)
{
    (void)client, (void)opaque;
    acknowledged++;
    if (message->err && failed++ < 3)
        fprintf(stderr, "rdkafka: %s\n", rd_kafka_err2str(message->err));
}

/* Words of a small vocabulary, so that compression has something to find, as in most real records. */
static char *text(void)
{
    static const char *words[] = {"river ", "arm ", "stream ", "order ", "\"id\": ", "1749", "apples ", "72.5, ", "{", "}"};
    char *text = calloc(1, TEXT_BYTES + RECORD_BYTES_MAX + 16);
    size_t size = 0;
    while (size < TEXT_BYTES + RECORD_BYTES_MAX) {
        const char *word = words[random() % (sizeof words / sizeof *words)];
        memcpy(text + size, word, strlen(word));
        size += strlen(word);
    }
    return text;
}

static void produce(rd_kafka_conf_t *conf, const char *topic, const char *codec)
{
    set(conf, "compression.codec", codec);
    set(conf, "queue.buffering.max.messages", "1000000");
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *producer = client(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t **handles = calloc(topics, sizeof *handles);
    const char *values = text();
    for (int i = 0; i < topics; i++) {
        char name[300];
        name_topic(name, sizeof name, topic, i);
        handles[i] = rd_kafka_topic_new(producer, name, NULL);
    }
    double started = now();
    for (int64_t i = 0; i < records; i++) {
        int32_t partition = topics == 1 ? RD_KAFKA_PARTITION_UA : i / topics % partitions;
        void *value = (void *)(values + i * 61 % TEXT_BYTES);
        while (rd_kafka_produce(handles[i % topics], partition, RD_KAFKA_MSG_F_COPY, value, record_bytes, NULL, 0, NULL)) {
            if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                die("cannot produce", rd_kafka_err2str(rd_kafka_last_error()));
            rd_kafka_poll(producer, 10);
        }
        if (i % POLL_EVERY == 0)
            rd_kafka_poll(producer, 0);
    }
    if (rd_kafka_flush(producer, PATIENCE_S * 1000))
        die("not all records were acknowledged", "timed out");
    print(now() - started, acknowledged);
}

/* --- consume ------------------------------------------------------------------------------------------------------ */

static rd_kafka_topic_partition_list_t *everything(const char *topic)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(topics * partitions);
    for (int i = 0; i < topics * partitions; i++) {
        char name[300];
        name_topic(name, sizeof name, topic, i % topics);
        rd_kafka_topic_partition_list_add(list, name, i / topics)->offset = RD_KAFKA_OFFSET_BEGINNING;
    }
    return list;
}

static void consume(rd_kafka_conf_t *conf, const char *topic)
{
    static rd_kafka_message_t *messages[MESSAGES_MAX];
    double started = 0, heard = now();
    int64_t seen = 0;
    set(conf, "group.id", "bench");
    set(conf, "enable.auto.commit", "false");
    rd_kafka_t *consumer = client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
    rd_kafka_assign(consumer, everything(topic));
    while (seen < records) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, WAIT_MS, messages, MESSAGES_MAX);
        if (count > 0)
            heard = now();
        if (now() - heard > PATIENCE_S)
            die("not all records arrived", "timed out");
        for (ssize_t i = 0; i < count; i++) {
            if (messages[i]->err)
                die("cannot consume", rd_kafka_message_errstr(messages[i]));
            if (!seen++)
                started = now();
            rd_kafka_message_destroy(messages[i]);
        }
    }
    print(now() - started, seen);
}

int main(int count, char **words)
{
    if (count != 9)
        die("usage", "produce|consume BOOTSTRAP TOPIC TOPICS PARTITIONS RECORDS RECORD_BYTES CODEC");
    topics = atoi(words[4]);
    partitions = atoi(words[5]);
    records = atoll(words[6]);
    record_bytes = atoi(words[7]);
    if (record_bytes > RECORD_BYTES_MAX)
        die("a record is too large", words[7]);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", words[2]);
    if (!strcmp(words[1], "produce"))
        produce(conf, words[3], words[8]);
    else
        consume(conf, words[3]);
    fflush(stdout);
    _Exit(0); /* Destroying a client may wait for its threads; what was measured is told. */
}
