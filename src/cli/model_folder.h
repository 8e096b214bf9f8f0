/* model_folder.h - the folder that a made-up checkpoint is written to: what is in it, is there room.
 *
 * Place: cli; under model_maker.c. A file of a model is a *.safetensors, its index, an unfinished one of
 *        these (.tmp-PID), or a file of the list in model_texts.h. Nothing else is ever touched. */
#ifndef CLI_MODEL_FOLDER_H
#define CLI_MODEL_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "formats/checkpoint.h"

/* dir/name; ERR_USAGE when it is too long. */
enum status model_folder_path(char out[CHECKPOINT_PATH_BYTES], const char *dir, const char *name,
                              struct error *err);

/* Make dir unless it is there (*made_dir). One that holds files of a model is ERR_USAGE, or is
 * cleared of them when `replace` is set. ERR_IO with the numbers, and with the old files still there,
 * when the disk has no room for need_bytes. */
enum status model_folder_prepare(bool *made_dir, const char *dir, bool replace, size_t need_bytes,
                                 struct error *err);

/* Remove all files of a model, and dir itself if remove_dir and nothing else is in it. */
void model_folder_clear(const char *dir, bool remove_dir);

#endif
