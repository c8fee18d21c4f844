/* pbox.h is C: this program is compiled as C11 and makes a job of one rank. Argument: HOST:PORT. */
#include <stdio.h>
#include <string.h>

#include "pbox/pbox.h"

static int calls = 0;

static void on_done(void* user, uint32_t tensor_id, pbox_status status) {
  *(pbox_status*)user = status;
  calls += tensor_id == 0;
}

static int fail(pbox_context* context, const char* what) {
  fprintf(stderr, "%s: %s\n", what, pbox_last_error(context));
  pbox_destroy(context);
  return 1;
}

int main(int argc, char** argv) {
  pbox_options options;
  pbox_context* context = NULL;
  pbox_status status = PBOX_INTERNAL;
  float values[3] = {1.0f, 2.0f, 3.0f};
  float sums[3] = {0};
  uint32_t tensor = 99;

  if (argc != 2 || pbox_abi_version() != PBOX_ABI_VERSION) return 2;
  pbox_options_init(&options);
  options.box = argv[1];
  options.job = "c";
  if (pbox_create(&options, &context) != PBOX_OK) return fail(context, "create");
  if (pbox_register_tensor(context, "t", 3, PBOX_F32, 0, &tensor) != PBOX_OK || tensor != 0) {
    return fail(context, "register");
  }
  if (pbox_join(context) != PBOX_OK) return fail(context, "join");
  if (pbox_push_pull(context, tensor, values, sums, on_done, &status) != PBOX_OK) {
    return fail(context, "push_pull");
  }
  if (pbox_wait(context, tensor, 0) != PBOX_OK) return fail(context, "wait");
  if (pbox_leave(context) != PBOX_OK) return fail(context, "leave"); /* also ends the I/O thread */
  if (calls != 1 || status != PBOX_OK) return 3;
  for (uint32_t index = 0; index < 3; ++index) {
    if (sums[index] != values[index]) return 3; /* one rank's sum is what it pushed */
  }
  pbox_destroy(context);
  return strcmp(pbox_status_string(PBOX_OK), "") == 0;
}
