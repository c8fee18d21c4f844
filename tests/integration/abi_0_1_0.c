/* A program of release 0.1.0: built with that release's pbox.h, it runs with today's library, whose
 * structs may be larger. It makes a job of one rank in mode optimize. Argument: HOST:PORT. */
#include <stdio.h>
#include <string.h>

#include "pbox/pbox.h"

#define GUARD_BYTES 64
#define GUARD 0x5a

/* Each struct is followed by bytes that the library must not write. */
static struct {
  pbox_options value;
  unsigned char guard[GUARD_BYTES];
} options;
static struct {
  pbox_optimizer_options value;
  unsigned char guard[GUARD_BYTES];
} optimizer;
static struct {
  pbox_statistics value;
  unsigned char guard[GUARD_BYTES];
} statistics;

static int is_whole(const unsigned char* guard) {
  for (int index = 0; index < GUARD_BYTES; ++index) {
    if (guard[index] != GUARD) return 0;
  }
  return 1;
}

static int fail(pbox_context* context, const char* what) {
  fprintf(stderr, "%s: %s\n", what, pbox_last_error(context));
  pbox_destroy(context);
  return 1;
}

int main(int argc, char** argv) {
  pbox_context* context = NULL;
  float weights[3] = {1.0f, 2.0f, 3.0f};
  const float gradients[3] = {1.0f, 1.0f, 1.0f};
  uint32_t tensor = 99;

  if (argc != 2 || pbox_abi_version() != 1) return 2;
  memset(&options, GUARD, sizeof(options));
  memset(&optimizer, GUARD, sizeof(optimizer));
  memset(&statistics, GUARD, sizeof(statistics));

  if (pbox_options_from_environment(&options.value) != PBOX_OK) return fail(NULL, "environment");
  if (!is_whole(options.guard)) return fail(NULL, "pbox_options_from_environment wrote too much");
  pbox_options_init(&options.value);
  if (!is_whole(options.guard)) return fail(NULL, "pbox_options_init wrote too much");
  options.value.box = argv[1];
  options.value.job = "release-0.1.0";
  options.value.mode = PBOX_MODE_OPTIMIZE;
  if (pbox_create(&options.value, &context) != PBOX_OK) return fail(NULL, "create");

  pbox_optimizer_options_init(&optimizer.value, PBOX_SGD);
  if (!is_whole(optimizer.guard)) return fail(context, "pbox_optimizer_options_init: too much");
  optimizer.value.learning_rate = 1.0f;
  if (pbox_register_tensor(context, "t", 3, PBOX_F32, 0, &tensor) != PBOX_OK || tensor != 0) {
    return fail(context, "register");
  }
  if (pbox_set_optimizer(context, &optimizer.value) != PBOX_OK) return fail(context, "optimizer");
  if (pbox_join(context) != PBOX_OK) return fail(context, "join");
  if (pbox_init_weights(context, tensor, weights, NULL, NULL) != PBOX_OK ||
      pbox_wait(context, tensor, 0) != PBOX_OK) {
    return fail(context, "weights");
  }
  if (pbox_push_pull(context, tensor, gradients, weights, NULL, NULL) != PBOX_OK ||
      pbox_wait(context, tensor, 0) != PBOX_OK) {
    return fail(context, "push_pull");
  }
  for (uint32_t index = 0; index < 3; ++index) {
    if (weights[index] != (float)index) return fail(context, "a wrong step of the optimizer");
  }
  statistics.value.struct_size = sizeof(statistics.value);
  if (pbox_get_statistics(context, &statistics.value) != PBOX_OK ||
      statistics.value.operations_completed != 2) {
    return fail(context, "statistics");
  }
  if (!is_whole(statistics.guard)) return fail(context, "pbox_get_statistics wrote too much");
  if (pbox_leave(context) != PBOX_OK) return fail(context, "leave");
  pbox_destroy(context);
  return 0;
}
