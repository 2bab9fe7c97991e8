/* The least that an exporter costs which renders our page anew: `floor BODY PORT [PID...]`, with BODY in the text format.
 *
 * Each 5 s, and before each scrape, it reads what /proc says of the processes, prints the number of each sample, and
 * compresses the page with zlib's fastest level. Calls of the driver are left out, as their time is taken off of ours.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

enum { IDLE_MILLISECONDS = 5000, CLIENTS = 64, REQUEST = 4096, NUMBER = 32 };

struct sample {
    const char *text; /* up to the number, with the comments before it */
    int length;
    double value;
};

static struct sample *samples;
static size_t count, plain_size, size;
static char *plain;
static unsigned char *page;

static void *checked(void *memory) {
    if (!memory) exit(1);
    return memory;
}

static void load(const char *path) {
    FILE *file = checked(fopen(path, "r"));
    char *text = checked(malloc(1 << 26));
    size_t length = fread(text, 1, (1 << 26) - 1, file);
    text[length] = 0;
    char *begin = text;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        if (*line == '#') continue;
        *end = 0;
        char *number = strrchr(line, ' ');
        if (!number) exit(1);
        if (count % 1024 == 0) samples = checked(realloc(samples, (count + 1024) * sizeof *samples));
        samples[count++] = (struct sample){begin, (int)(number + 1 - begin), atof(number)};
        begin = end + 1;
    }
    plain = checked(malloc(length + count * NUMBER));
    size = compressBound(length + count * NUMBER) + 32;
    page = checked(malloc(size));
}

static double read_process(const char *pid) {
    static const char *files[] = {"stat", "status", "io", "schedstat", "cgroup"};
    double sum = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[64], text[8192];
        snprintf(path, sizeof path, "/proc/%s/%s", pid, files[i]);
        int file = open(path, O_RDONLY);
        if (file < 0) continue;
        ssize_t length = read(file, text, sizeof text - 1);
        close(file);
        text[length > 0 ? length : 0] = 0;
        for (char *at = text; (at = strpbrk(at, "0123456789"));) sum += strtod(at, &at);
    }
    return sum;
}

static size_t render(char **pids, int processes) {
    double sum = 0;
    for (int i = 0; i < processes; i++) sum += read_process(pids[i]);
    char *at = plain;
    for (size_t i = 0; i < count; i++) {
        memcpy(at, samples[i].text, samples[i].length);
        at += samples[i].length;
        at += snprintf(at, NUMBER, "%.15g\n", samples[i].value + (sum < 0));
    }
    plain_size = at - plain;
    z_stream stream = {.next_in = (unsigned char *)plain, .avail_in = plain_size, .next_out = page, .avail_out = size};
    if (deflateInit2(&stream, 1, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) exit(1);
    deflate(&stream, Z_FINISH);
    deflateEnd(&stream);
    return stream.total_out;
}

static int answer(int client, char **pids, int processes) {
    char request[REQUEST], head[256];
    if (read(client, request, sizeof request) <= 0) return 0;
    size_t compressed = render(pids, processes);
    int zipped = memmem(request, sizeof request, "gzip", 4) != NULL;
    size_t length = zipped ? compressed : plain_size;
    int written = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n%sContent-Length: %zu\r\n\r\n",
                           zipped ? "Content-Encoding: gzip\r\n" : "", length);
    const char *body = zipped ? (char *)page : plain;
    if (write(client, head, written) != written) return 0;
    for (size_t sent = 0; sent < length;) {
        ssize_t part = write(client, body + sent, length - sent);
        if (part <= 0) return 0;
        sent += part;
    }
    return 1;
}

int main(int arguments, char **argument) {
    if (arguments < 3) return 1;
    load(argument[1]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argument[2]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct pollfd sockets[1 + CLIENTS] = {{socket(AF_INET, SOCK_STREAM, 0), POLLIN, 0}};
    int one = 1, open_sockets = 1;
    setsockopt(sockets[0].fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(sockets[0].fd, (struct sockaddr *)&address, sizeof address) || listen(sockets[0].fd, CLIENTS)) return 1;
    for (;;) {
        if (poll(sockets, open_sockets, IDLE_MILLISECONDS) == 0) render(argument + 3, arguments - 3);
        for (int i = open_sockets - 1; i > 0; i--)
            if (sockets[i].revents && !answer(sockets[i].fd, argument + 3, arguments - 3)) {
                close(sockets[i].fd);
                sockets[i] = sockets[--open_sockets];
            }
        if (sockets[0].revents && open_sockets <= CLIENTS)
            sockets[open_sockets++] = (struct pollfd){accept(sockets[0].fd, NULL, NULL), POLLIN, 0};
    }
}
