/* What a "container" of the test plugin looks like to a task: its mounts and its working directory. */
#ifndef GPUBENCH_SPANK_MOUNTS_H
#define GPUBENCH_SPANK_MOUNTS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { MAX_MOUNTS = 64, MAX_HIDDEN = 32 };

struct mount_spec {
    char source[PATH_MAX]; /* on the host, absolute */
    char target[PATH_MAX]; /* in the container, absolute */
    bool read_only;
};

struct mount_list {
    struct mount_spec items[MAX_MOUNTS];
    size_t count;
};

/* Reads "SRC:DST[:FLAG[+FLAG...]][,...]". Returns 0, or -1 with one line about the fault in `why`. */
int parse_mounts(const char *text, struct mount_list *out, char *why, size_t why_size);

/*
 * Gives the calling process a mount namespace of its own, in which every target of `mounts` shows its source and the
 * directories in `hidden` are empty. Targets that the host lacks appear in tmpfs copies of their parents: the host's
 * own tree is not touched. Returns 0, or -1 with one line in `why`.
 */
int enter_mounts(const struct mount_list *mounts, char hidden[][PATH_MAX], size_t hidden_count, const char *scratch,
                 char *why, size_t why_size);

/* Without root: makes each missing target a symbolic link to its source. Same return as enter_mounts. */
int link_mounts(const struct mount_list *mounts, char *why, size_t why_size);

#endif
