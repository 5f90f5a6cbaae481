/* Scenes by name, each in its own process, so that no state is left over. Usage: PROGRAM SCENE. */
#ifndef PYLOG_SCENE_NAMES_H
#define PYLOG_SCENE_NAMES_H

#include "scenes.h"

struct scene {
    const char *name;
    void (*play)(void);
};
static struct scene scenes[64];
static int scene_count;
#define SCENE(name)                                                                                \
    static void name(void);                                                                        \
    __attribute__((constructor)) static void name##_is_known(void) {                               \
        scenes[scene_count++] = (struct scene){#name, name};                                       \
    }                                                                                              \
    static void name(void)

int main(int argc, char **argv) {
    CHECK(argc == 2);
    for (int i = 0; i < scene_count; i++)
        if (strcmp(scenes[i].name, argv[1]) == 0) {
            scenes[i].play();
            puts("ok");
            return 0;
        }
    fprintf(stderr, "no scene %s\n", argv[1]);
    return 1;
}

#endif
