/* A libnvidia-ml.so.1 with one GPU, whose sample rings are drawn by a test. The test sets `config` and `seconds`. A value
 * is a pure function of both, and `busy_seconds` and `process_seconds` are the truth: the sums over all samples, however
 * the rings show them. Each sample is the load of one process.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE };
enum { MAX_STEPS = 4, MAX_ENTRIES = 4096, PROCESSES = 3, FIRST_PID = 41000, UNKNOWN_PID = 7 };

struct config {
    double period, jitter;         /* of the samples: seconds, and its share that varies */
    double on, off, phase;         /* of the load: seconds */
    double level, idle;            /* of the load: percent */
    double dropped;                /* share of the samples that the ring lacks */
    double epoch;                  /* of the driver's clock: seconds */
    double step_at[MAX_STEPS];     /* when the driver's clock is set, and by how much: seconds */
    double step_by[MAX_STEPS];
    int32_t seed, capacity, value_type;
    int32_t duplicates, shuffled, timeless;  /* whether the ring has such entries */
    int32_t sizing;                /* 0: the size is that of the ring; 1: that of its content; 2: as an error */
    int32_t garbage;               /* whether there are rows of processes that cannot be true */
    double shares[PROCESSES];      /* of the samples that each process has; the last one has the rest */
    double future_at;              /* when there is a row of an unknown process, a day ahead, for 3 seconds */
};

struct sample {
    uint64_t stamp;
    union { double d; uint32_t u; uint64_t l; int64_t s; int32_t i; uint16_t h; } value;
};

struct row {
    uint32_t pid;
    uint64_t stamp;
    uint32_t sm, memory, encoder, decoder;
};

struct config config;
double seconds;
static int initialized, gpu;

static double chance(long long number, int kind)
{
    uint64_t x = (uint64_t)config.seed * 0x9E3779B97F4A7C15u ^ (uint64_t)number * 0xBF58476D1CE4E5B9u ^ (uint64_t)kind << 40;
    for (int round = 0; round < 3; round++)
        x = (x ^ x >> 31) * 0x94D049BB133111EBu;
    return (double)(x >> 11) / 9007199254740992.0;
}

static double end_of(long long number)
{
    return ((double)number + (chance(number, 1) - 0.5) * config.jitter) * config.period;
}

static long long newest(double now)
{
    long long number = (long long)(now / config.period) + 2;
    while (end_of(number) > now)
        number--;
    return number;
}

static int percent_of(long long number)
{
    double begin = end_of(number - 1), end = end_of(number), cycle = config.on + config.off, on = 0;
    for (double k = floor((begin + config.phase) / cycle); k * cycle - config.phase < end; k++) {
        double from = fmax(begin, k * cycle - config.phase), to = fmin(end, k * cycle - config.phase + config.on);
        on += fmax(0, to - from);
    }
    double share = on / (end - begin);
    return (int)lrint(share * config.level + (1 - share) * config.idle);
}

static uint64_t stamp_of(long long number)
{
    double at = end_of(number), clock = config.epoch + at;
    for (int step = 0; step < MAX_STEPS; step++)
        if (config.step_by[step] && at >= config.step_at[step])
            clock += config.step_by[step];
    return (uint64_t)(clock * 1e6);
}

static int process_of(long long number)
{
    double drawn = chance(number, 6);
    int process = 0;
    while (process < PROCESSES - 1 && drawn >= config.shares[process])
        drawn -= config.shares[process++];
    return process;
}

double process_seconds(int process, double begin, double end)
{
    double sum = 0;
    for (long long number = newest(begin) + 1; number <= newest(end); number++)
        if (process_of(number) == process)
            sum += percent_of(number) / 100.0 * (end_of(number) - end_of(number - 1));
    return sum;
}

double busy_seconds(double begin, double end)
{
    double sum = 0;
    for (long long number = newest(begin) + 1; number <= newest(end); number++)
        sum += percent_of(number) / 100.0 * (end_of(number) - end_of(number - 1));
    return sum;
}

static void set(struct sample *sample, int percent)
{
    memset(&sample->value, 0, sizeof sample->value);
    switch (config.value_type) {
    case 0: sample->value.d = percent; break;
    case 1: sample->value.u = (uint32_t)percent; break;
    case 4: sample->value.s = percent; break;
    case 5: sample->value.i = percent; break;
    case 6: sample->value.h = (uint16_t)percent; break;
    default: sample->value.l = (uint64_t)percent;
    }
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; initialized = 1; return SUCCESS; }
int nvmlShutdown(void) { initialized = 0; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return initialized ? SUCCESS : UNINITIALIZED; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    *handle = &gpu;
    return index ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned length)
{
    (void)handle;
    strncpy(text, "GPU-0", length);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *percents)
{
    (void)handle;
    percents[0] = percents[1] = (unsigned)percent_of(newest(seconds));
    return SUCCESS;
}

int nvmlDeviceGetSamples(void *handle, int type, uint64_t since, unsigned *value_type, unsigned *count, struct sample *out)
{
    static struct sample ring[MAX_ENTRIES];
    unsigned found = 0, room = out ? *count : 0;
    long long last = newest(seconds);

    (void)handle;
    if (type != 1)
        return NOT_SUPPORTED;
    *value_type = (unsigned)config.value_type;
    for (long long number = last - config.capacity + 1; number <= last && found + 1 < MAX_ENTRIES; number++) {
        struct sample sample = {.stamp = stamp_of(number)};
        if (chance(number, 2) < config.dropped)
            continue;
        if (config.timeless && chance(number, 3) < 0.1)
            sample.stamp = 0;
        else if (sample.stamp <= since)
            continue;
        set(&sample, percent_of(number));
        ring[found++] = sample;
        if (config.duplicates && chance(number, 4) < 0.3)
            ring[found++] = sample;
    }
    for (unsigned place = found; config.shuffled && place > 1; place--) {
        unsigned other = (unsigned)(chance(place, 5) * place);
        struct sample sample = ring[place - 1];
        ring[place - 1] = ring[other];
        ring[other] = sample;
    }
    if (!found)
        return NOT_FOUND;
    *count = config.sizing || out ? found : (unsigned)config.capacity * 2;
    if (!out)
        return config.sizing == 2 ? INSUFFICIENT_SIZE : SUCCESS;
    if (room < found)
        return INSUFFICIENT_SIZE;
    memcpy(out, ring, found * sizeof *ring);
    return SUCCESS;
}

int nvmlDeviceGetProcessUtilization(void *handle, struct row *out, unsigned *count, uint64_t since)
{
    struct row rows[PROCESSES + 3];
    double sums[PROCESSES] = {0};
    unsigned samples = 0, found = 0;
    long long last = newest(seconds);

    (void)handle;
    if (!out) {
        *count = PROCESSES + 3;
        return INSUFFICIENT_SIZE;
    }
    for (long long number = last - config.capacity + 1; number <= last; number++) {
        if (stamp_of(number) <= since)
            continue;
        sums[process_of(number)] += percent_of(number);
        samples++;
    }
    memset(rows, 0, sizeof rows);
    for (int process = 0; process < PROCESSES; process++)
        if (samples && lrint(sums[process] / samples) > 0)
            rows[found++] = (struct row){(uint32_t)(FIRST_PID + process), stamp_of(last), (uint32_t)lrint(sums[process] / samples)};
    if (config.garbage && chance(last, 7) < 0.3) {
        rows[found++] = (struct row){0, UINT64_MAX, 50};
        rows[found++] = (struct row){FIRST_PID, UINT64_MAX / 2, 4096};
    }
    if (config.future_at && seconds >= config.future_at && seconds < config.future_at + 3)
        rows[found++] = (struct row){UNKNOWN_PID, stamp_of(last) + 86400000000u, 10};
    if (!found)
        return NOT_FOUND;
    if (*count < found)
        return INSUFFICIENT_SIZE;
    *count = found;
    memcpy(out, rows, found * sizeof *rows);
    return SUCCESS;
}
