/* numa_test.c - sysfs lists, a made-up machine of two nodes, and where its threads go.
 *
 * Place: base, cmocka. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/numa.h"
#include "base/pool.h"

static void test_lists(void **state)
{
    static const char *const bad[] = {"x",   "1-", "-1",   "3-1",      "1 2",  "1,,2",
                                      "1;2", ",",  "1024", "0-100000", "1-2-3"};
    cpu_set_t set;

    (void)state;
    assert_true(numa_parse_list(&set, "0-3,8,10-11\n"));
    assert_int_equal(CPU_COUNT(&set), 7);
    assert_true(CPU_ISSET(3, &set) && CPU_ISSET(8, &set) && CPU_ISSET(11, &set));
    assert_false(CPU_ISSET(4, &set) || CPU_ISSET(9, &set));
    assert_true(numa_parse_list(&set, ""));
    assert_int_equal(CPU_COUNT(&set), 0);
    assert_true(numa_parse_list(&set, "\n"));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(numa_parse_list(&set, bad[i]));
        assert_int_equal(CPU_COUNT(&set), 0);
    }
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_detect(void **state)
{
    char dir[] = "/tmp/numa_test.XXXXXX", path[256];
    static const char *const names[] = {"has_memory", "node0/cpulist", "node2/cpulist", "node0",
                                        "node2"};
    struct numa_topology t;
    cpu_set_t allowed;

    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int id = 0; id <= 2; id += 2) {
        snprintf(path, sizeof path, "%s/node%d", dir, id);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    numa_detect(&t, dir);
    assert_int_equal(t.n_nodes, 0);

    write_file(dir, "has_memory", "0,2\n");
    write_file(dir, "node0/cpulist", "0-1023\n");
    write_file(dir, "node2/cpulist", "nonsense\n");
    numa_detect(&t, dir);
    assert_int_equal(t.n_nodes, 2);
    assert_int_equal(t.nodes[1].id, 2);
    assert_int_equal(CPU_COUNT(&t.nodes[1].cpus), 0);
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    assert_true(CPU_EQUAL(&t.nodes[0].cpus, &allowed));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(remove(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

static struct numa_topology two_nodes(void)
{
    struct numa_topology t = {.n_nodes = 3};

    t.nodes[1].id = 1;
    t.nodes[2].id = 2; /* memory only */
    numa_parse_list(&t.nodes[0].cpus, "0-1");
    numa_parse_list(&t.nodes[1].cpus, "4,6,8");
    return t;
}

static void test_placement(void **state)
{
    static const int want[] = {0, 4, 1, 6, 0, 8, 1, 4};
    struct numa_topology t = two_nodes(), none = {0};

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        assert_int_equal(numa_cpu_for(&t, i), want[i]);
    }
    assert_int_equal(numa_cpu_for(&none, 0), -1);
}

static void test_one_node_does_nothing(void **state)
{
    struct numa_topology t = {.n_nodes = 1};
    struct pool *pool;
    cpu_set_t before, after;

    (void)state;
    numa_parse_list(&t.nodes[0].cpus, "0");
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_false(numa_interleave(&t, true));
    assert_false(numa_interleave(&t, false));
    assert_int_equal(pool_new(&pool, 2, NULL), OK);
    numa_bind_pool(&t, pool);
    t.n_nodes = 0;
    numa_bind_pool(&t, pool);
    pool_free(pool);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_detect),
        cmocka_unit_test(test_placement),
        cmocka_unit_test(test_one_node_does_nothing),
    };
    return cmocka_run_group_tests_name("numa", tests, NULL, NULL);
}
