/*
 * Bind mounts in a private mount namespace, as far as a test needs them to look like a container's.
 *
 * The root of the host stays visible (there is no image to unpack), so only two things are built: what is mounted,
 * and what is hidden. A target whose parent does not exist on the host is made in a "graft": a tmpfs laid over the
 * nearest directory that does exist, with every entry of that directory bound back in.
 */
#define _GNU_SOURCE
#include "spank_mounts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const known_flags[] = {
    "ro",       "rw",     "bind",   "rbind",  "private", "rprivate",     "slave",         "rslave", "shared",
    "rshared",  "nosuid", "nodev",  "noexec", "x-move",  "x-create=dir", "x-create=file", "x-create=auto",
};

__attribute__((format(printf, 3, 4))) static int fail(char *why, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
    return -1;
}

static bool is_known_flag(const char *flag)
{
    for (size_t i = 0; i < sizeof known_flags / sizeof *known_flags; i++)
        if (strcmp(flag, known_flags[i]) == 0)
            return true;
    return false;
}

static int parse_one(char *entry, struct mount_spec *out, char *why, size_t size)
{
    char *rest = entry;
    char *source = strsep(&rest, ":");
    char *target = strsep(&rest, ":");
    char *flags = strsep(&rest, ":");
    if (!target || rest)
        return fail(why, size, "a mount is SRC:DST[:FLAGS], got '%s%s%s'", source, target ? ":" : "", target ? target : "");
    if (source[0] != '/' || target[0] != '/')
        return fail(why, size, "both sides of a mount are absolute paths, got '%s:%s'", source, target);
    if (strlen(source) >= PATH_MAX || strlen(target) >= PATH_MAX)
        return fail(why, size, "a path of a mount is too long");
    strcpy(out->source, source);
    strcpy(out->target, target);
    for (size_t end = strlen(out->target); end > 1 && out->target[end - 1] == '/';)
        out->target[--end] = '\0';
    out->read_only = false;
    for (char *flag; flags && (flag = strsep(&flags, "+"));) {
        if (!is_known_flag(flag))
            return fail(why, size, "unknown mount flag '%s' for '%s:%s'", flag, source, target);
        if (strcmp(flag, "ro") == 0)
            out->read_only = true;
    }
    return 0;
}

int parse_mounts(const char *text, struct mount_list *out, char *why, size_t size)
{
    char *copy = strdup(text), *rest = copy, *entry;
    int rc = copy ? 0 : fail(why, size, "out of memory");
    while (rc == 0 && (entry = strsep(&rest, ","))) {
        if (out->count == MAX_MOUNTS)
            rc = fail(why, size, "more than %d mounts", MAX_MOUNTS);
        else if ((rc = parse_one(entry, &out->items[out->count], why, size)) == 0)
            out->count++;
    }
    free(copy);
    return rc;
}

/* Makes an empty directory or file at `at`, of the kind of `like`, for a bind mount to land on. */
static int make_mount_point(const char *at, const struct stat *like)
{
    if (S_ISDIR(like->st_mode))
        return mkdir(at, 0755) == 0 || errno == EEXIST ? 0 : -1;
    int fd = open(at, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    return fd < 0 ? -1 : close(fd);
}

static int bind_tree(const char *from, const char *to, bool read_only)
{
    if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) != 0)
        return -1;
    return read_only ? mount(NULL, to, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) : 0;
}

/* Binds every entry of the directory `from` to the same name under `to`; links are copied. */
static int bind_entries(const char *from, const char *to)
{
    DIR *dir = opendir(from);
    if (!dir)
        return -1;
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(dir));) {
        char source[2 * PATH_MAX], target[2 * PATH_MAX], link[PATH_MAX];
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(source, sizeof source, "%s/%s", from, entry->d_name);
        snprintf(target, sizeof target, "%s/%s", to, entry->d_name);
        if (lstat(source, &info) != 0)
            continue; /* gone since readdir: /tmp is alive */
        if (S_ISLNK(info.st_mode)) {
            ssize_t length = readlink(source, link, sizeof link - 1);
            if (length < 0)
                continue;
            link[length] = '\0';
            rc = symlink(link, target);
        } else if ((rc = make_mount_point(target, &info)) == 0) {
            rc = bind_tree(source, target, false);
            if (rc != 0 && errno == ENOENT)
                rc = 0;
        }
    }
    closedir(dir);
    return rc;
}

/* Lays a writable tmpfs over the directory `at` that still shows all that was there. "/" is replaced by chroot. */
static int graft(const char *at, const char *scratch)
{
    static char done[MAX_MOUNTS][PATH_MAX]; /* grafts so far: they are writable, one is enough */
    static size_t done_count;
    bool whole = strcmp(at, "/") == 0;
    char old[64];
    for (size_t i = 0; i < done_count; i++)
        if (strcmp(done[i], at) == 0)
            return 0;
    if (done_count < MAX_MOUNTS)
        strcpy(done[done_count++], at);
    int fd = open(at, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    snprintf(old, sizeof old, "/proc/self/fd/%d", fd);
    const char *top = whole ? scratch : at;
    int rc = mount("tmpfs", top, "tmpfs", 0, "mode=0755");
    /* Unbindable, or the copy of "/" would hold a copy of the copy. */
    if (rc == 0 && whole)
        rc = mount(NULL, top, NULL, MS_UNBINDABLE, NULL);
    if (rc == 0)
        rc = bind_entries(whole ? "/" : old, top);
    if (rc == 0 && whole)
        rc = chroot(scratch) == 0 ? chdir("/") : -1;
    close(fd);
    return rc;
}

/* Makes sure that `target` exists, as a directory or a file like `like`. */
static int prepare_target(const char *target, const struct stat *like, const char *scratch)
{
    char path[PATH_MAX];
    struct stat info;
    if (stat(target, &info) == 0)
        return 0;
    strcpy(path, target);
    char *cut = NULL;
    do { /* up to the nearest directory that exists */
        cut = strrchr(path, '/');
        *cut = '\0';
    } while (cut != path && stat(path, &info) != 0);
    if (graft(cut == path ? "/" : path, scratch) != 0)
        return -1;
    strcpy(path, target);
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            return -1;
        *slash = '/';
    }
    return make_mount_point(target, like);
}

int enter_mounts(const struct mount_list *mounts, char hidden[][PATH_MAX], size_t hidden_count, const char *scratch,
                 char *why, size_t size)
{
    int sources[MAX_MOUNTS];
    struct stat info[MAX_MOUNTS];
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return fail(why, size, "no mount namespace of its own: %s", strerror(errno));
    /* All sources are opened before anything is hidden or covered: they are paths of the host. */
    for (size_t i = 0; i < mounts->count; i++) {
        sources[i] = open(mounts->items[i].source, O_PATH | O_CLOEXEC);
        if (sources[i] < 0 || fstat(sources[i], &info[i]) != 0)
            return fail(why, size, "mount source %s: %s", mounts->items[i].source, strerror(errno));
    }
    for (size_t i = 0; i < hidden_count; i++)
        if (access(hidden[i], F_OK) == 0 && mount("tmpfs", hidden[i], "tmpfs", MS_RDONLY, "mode=0755,size=4k") != 0)
            return fail(why, size, "cannot hide %s: %s", hidden[i], strerror(errno));
    for (size_t i = 0; i < mounts->count; i++) {
        const struct mount_spec *spec = &mounts->items[i];
        char source[64];
        snprintf(source, sizeof source, "/proc/self/fd/%d", sources[i]);
        if (prepare_target(spec->target, &info[i], scratch) != 0 ||
            bind_tree(source, spec->target, spec->read_only) != 0)
            return fail(why, size, "cannot mount %s at %s: %s", spec->source, spec->target, strerror(errno));
        close(sources[i]);
    }
    return 0;
}

int link_mounts(const struct mount_list *mounts, char *why, size_t size)
{
    for (size_t i = 0; i < mounts->count; i++) {
        const struct mount_spec *spec = &mounts->items[i];
        if (access(spec->source, F_OK) != 0)
            return fail(why, size, "mount source %s: %s", spec->source, strerror(errno));
        if (access(spec->target, F_OK) != 0 && symlink(spec->source, spec->target) != 0)
            return fail(why, size, "cannot link %s to %s: %s", spec->target, spec->source, strerror(errno));
    }
    return 0;
}
