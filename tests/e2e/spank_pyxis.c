/*
 * A SPANK plugin with the options of NVIDIA's Pyxis, for tests: a real srun and sbatch parse our command lines, and a
 * step sees its mounts, its working directory and its environment as it would in a container. No image is unpacked:
 * the host's root stands in for the image's.
 *
 * plugstack.conf:  required /path/spank_pyxis.so scratch=DIR [imageenv=FILE] [hidden=FILE]
 *   scratch   an existing empty directory, where a new root is put together when a mount needs one
 *   imageenv  lines KEY=VALUE, the image's ENV. It wins over the job's unless --container-env names the variable
 *             (seen with Pyxis 0.24: the option decides who wins, it is no allow-list). Read anew by each step.
 *   hidden    directories of the host, one a line, that no container sees unless they are mounted. Read anew too.
 */
#define _GNU_SOURCE
#include "spank_mounts.h"

#include <ctype.h>
#include <errno.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(gpubench_pyxis, 1)

enum option {
    IMAGE, NAME, SAVE, MOUNTS, WORKDIR, ENV,
    MOUNT_HOME, NO_MOUNT_HOME, REMAP_ROOT, NO_REMAP_ROOT, ENTRYPOINT, NO_ENTRYPOINT, WRITABLE, READONLY,
    OPTION_COUNT
};

static struct {
    char *given[OPTION_COUNT]; /* the argument; "" for an option without one; NULL when it was not given */
    struct mount_list mounts;
    char imageenv[PATH_MAX], hidden[PATH_MAX], scratch[PATH_MAX];
} state;

static int on_option(int which, const char *text, int remote);

#define WITH(which, name, arg, help) {name, arg, "[pyxis] " help, 1, which, on_option}
#define FLAG(which, name, help) {name, NULL, "[pyxis] " help, 0, which, on_option}

static struct spank_option options[] = {
    WITH(IMAGE, "container-image", "IMAGE", "image the step runs in: a registry name or the path of a squashfs file"),
    WITH(MOUNTS, "container-mounts", "SRC:DST[:FLAGS][,...]", "host paths to mount in the container"),
    WITH(WORKDIR, "container-workdir", "PATH", "working directory in the container"),
    WITH(NAME, "container-name", "NAME", "name to keep the container under"),
    WITH(SAVE, "container-save", "PATH", "file to save the container to"),
    WITH(ENV, "container-env", "NAME[,NAME...]", "variables whose value in the job wins over the image's"),
    FLAG(MOUNT_HOME, "container-mount-home", "mount the home directory"),
    FLAG(NO_MOUNT_HOME, "no-container-mount-home", "do not mount the home directory"),
    FLAG(REMAP_ROOT, "container-remap-root", "be root in the container"),
    FLAG(NO_REMAP_ROOT, "no-container-remap-root", "be oneself in the container"),
    FLAG(ENTRYPOINT, "container-entrypoint", "run the image's entry point"),
    FLAG(NO_ENTRYPOINT, "no-container-entrypoint", "do not run the image's entry point"),
    FLAG(WRITABLE, "container-writable", "the container's root can be written"),
    FLAG(READONLY, "container-readonly", "the container's root cannot be written"),
};

static const char *option_name(enum option which)
{
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (options[i].val == (int)which)
            return options[i].name;
    return "?";
}

static int complain(enum option which, const char *what)
{
    slurm_error("pyxis: --%s: %s", option_name(which), what);
    return -1;
}

/* True when `name`, of `length` characters, may name an environment variable. */
static int is_variable(const char *name, size_t length)
{
    if (length == 0 || isdigit((unsigned char)name[0]))
        return 0;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '_')
            return 0;
    return 1;
}

static int check_names(const char *text)
{
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        if (!is_variable(at, length))
            return complain(ENV, "a list of variable names is wanted");
        at += length;
        if (!*at)
            return 0;
    }
}

static int on_option(int which, const char *text, int remote)
{
    char why[2 * PATH_MAX];
    (void)remote;
    if (which <= ENV && (!text || !*text))
        return complain(which, "an argument is wanted");
    if (which == IMAGE && strpbrk(text, " \t\n"))
        return complain(which, "an image name has no blanks");
    if ((which == WORKDIR || which == SAVE) && text[0] != '/')
        return complain(which, "an absolute path is wanted");
    if (which == MOUNTS) {
        state.mounts.count = 0;
        if (parse_mounts(text, &state.mounts, why, sizeof why) != 0)
            return complain(which, why);
    }
    if (which == ENV && check_names(text) != 0)
        return -1;
    free(state.given[which]);
    state.given[which] = strdup(text ? text : "");
    return state.given[which] ? 0 : -1;
}

static void read_argument(const char *argument, const char *key, char *into)
{
    size_t length = strlen(key);
    if (strncmp(argument, key, length) == 0 && argument[length] == '=')
        snprintf(into, PATH_MAX, "%s", argument + length + 1);
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    spank_context_t context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
        return 0;
    for (int i = 0; i < argc; i++) {
        read_argument(argv[i], "imageenv", state.imageenv);
        read_argument(argv[i], "hidden", state.hidden);
        read_argument(argv[i], "scratch", state.scratch);
    }
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
            return complain(options[i].val, "cannot be registered");
    return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    (void)spank, (void)argc, (void)argv;
    for (int which = MOUNT_HOME; which < OPTION_COUNT; which += 2)
        if (state.given[which] && state.given[which + 1])
            return complain(which, "its opposite was given too");
    if (state.given[IMAGE] || state.given[NAME])
        return 0;
    for (int which = SAVE; which < OPTION_COUNT; which++)
        if (state.given[which])
            return complain(which, "does nothing without --container-image or --container-name");
    return 0;
}

static int in_container(spank_t spank)
{
    return spank_remote(spank) == 1 && (state.given[IMAGE] || state.given[NAME]);
}

/* True when --container-env names `name`. */
static int job_wins(const char *name)
{
    size_t length = strlen(name);
    for (const char *at = state.given[ENV]; at && *at; at += strspn(at, ",")) {
        size_t here = strcspn(at, ",");
        if (here == length && strncmp(at, name, length) == 0)
            return 1;
        at += here;
    }
    return 0;
}

/* The image's environment goes over the job's, variable by variable. */
int slurm_spank_user_init(spank_t spank, int argc, char **argv)
{
    char line[4096], unused[1];
    (void)argc, (void)argv;
    if (!in_container(spank) || !state.imageenv[0])
        return 0;
    FILE *file = fopen(state.imageenv, "re");
    if (!file)
        return errno == ENOENT ? 0 : complain(IMAGE, "its environment cannot be read");
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *equals = strchr(line, '=');
        if (!equals || !is_variable(line, (size_t)(equals - line)))
            continue;
        *equals = '\0';
        int in_job = spank_getenv(spank, line, unused, sizeof unused) != ESPANK_ENV_NOEXIST;
        if (!(in_job && job_wins(line)))
            spank_setenv(spank, line, equals + 1, 1);
    }
    fclose(file);
    return 0;
}

static size_t read_hidden(char paths[][PATH_MAX])
{
    size_t count = 0;
    FILE *file = state.hidden[0] ? fopen(state.hidden, "re") : NULL;
    while (file && count < MAX_HIDDEN && fgets(paths[count], PATH_MAX, file)) {
        paths[count][strcspn(paths[count], "\n")] = '\0';
        count += paths[count][0] == '/';
    }
    if (file)
        fclose(file);
    return count;
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv)
{
    static char hidden[MAX_HIDDEN][PATH_MAX];
    char why[2 * PATH_MAX];
    (void)argc, (void)argv;
    if (!in_container(spank))
        return 0;
    int rc = geteuid() == 0 ? enter_mounts(&state.mounts, hidden, read_hidden(hidden), state.scratch, why, sizeof why)
                            : link_mounts(&state.mounts, why, sizeof why);
    return rc == 0 ? 0 : complain(MOUNTS, why);
}

/* The last call before exec, as the user. Without --container-workdir a container starts in its image's: here "/". */
int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    (void)argc, (void)argv;
    if (!in_container(spank))
        return 0;
    const char *workdir = state.given[WORKDIR] ? state.given[WORKDIR] : "/";
    if (chdir(workdir) == 0)
        return 0;
    slurm_error("pyxis: --container-workdir: couldn't chdir to %s: %s", workdir, strerror(errno));
    return -1;
}
