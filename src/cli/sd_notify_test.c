/* sd_notify_test.c - datagrams to a socket of our own, as systemd would open it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli/sd_notify.h"

/* Binds `path` (its first byte NUL: abstract) and sets NOTIFY_SOCKET to `name`. */
static int listen_as(const char *path, size_t len, const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_true(fd >= 0);
    memcpy(at.sun_path, path, len);
    assert_int_equal(
        bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)),
        0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static void expect_message(int fd, const char *text)
{
    char got[64] = "";
    ssize_t n = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);
    assert_int_equal(n, (ssize_t)strlen(text));
    assert_string_equal(got, text);
}

static void test_path(void **state)
{
    (void)state;
    char dir[] = "/tmp/spillway-notify-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/socket", dir);
    int fd = listen_as(path, strlen(path), path);
    sd_notify_send("READY=1\nSTATUS=serving");
    expect_message(fd, "READY=1\nSTATUS=serving");
    close(fd);
    unlink(path);
    rmdir(dir);
    sd_notify_send("nobody listens: no harm");
}

static void test_abstract(void **state)
{
    (void)state;
    char name[64], path[64];
    snprintf(name, sizeof name, "@spillway-notify-%ld", (long)getpid());
    snprintf(path, sizeof path, "%s", name);
    path[0] = '\0';
    int fd = listen_as(path, strlen(name), name);
    sd_notify_send("STOPPING=1");
    expect_message(fd, "STOPPING=1");
    close(fd);
}

static void test_nothing(void **state)
{
    (void)state;
    char longer[300];
    memset(longer, 'x', sizeof longer - 1);
    longer[0] = '/';
    longer[sizeof longer - 1] = '\0';
    unsetenv("NOTIFY_SOCKET");
    sd_notify_send("READY=1");
    static const char *const bad[] = {"", "/", "relative"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("NOTIFY_SOCKET", bad[i], 1);
        sd_notify_send("READY=1");
    }
    setenv("NOTIFY_SOCKET", longer, 1);
    sd_notify_send("READY=1");
    unsetenv("NOTIFY_SOCKET");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_abstract),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
