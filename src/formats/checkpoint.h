/* checkpoint.h - a model folder: its JSON files and its tensors over all shards.
 *
 * Place:  formats. The argument is a folder, or "org/name[@revision]" looked up in the Hugging Face
 *         cache (the caller passes the cache folders: this layer reads no environment). With an index
 *         every listed shard must exist and hold exactly the tensors that the index names for it;
 *         a tensor in two shards, in the wrong shard, or in a shard but not in the index is an error.
 *         Nothing large is read: shards are mapped. */
#ifndef FORMATS_CHECKPOINT_H
#define FORMATS_CHECKPOINT_H

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/tensor.h"

enum {
    CHECKPOINT_PATH_BYTES = 4096,
    CHECKPOINT_SHARDS_MAX = 4096,
    CHECKPOINT_JSON_BYTES_MAX = 16 << 20,  /* config.json and its kind */
    CHECKPOINT_INDEX_BYTES_MAX = 256 << 20 /* about 100 bytes for each of two million tensors */
};

struct checkpoint;

struct checkpoint_tensor {
    const char *name;
    struct tensor tensor; /* data borrowed from the mapping */
    size_t n_bytes;
    const char *file; /* base name of the shard */
};

/* cache_dirs: NULL-terminated list of hub cache folders, tried in order; may be NULL.
 * ERR_NOT_FOUND says where was looked and how to download; ERR_FORMAT names the file and tensor.
 * Warnings: shards in the folder that the index does not list. */
enum status checkpoint_open(struct checkpoint **out, const char *path_or_name,
                            const char *const *cache_dirs, const struct log *log,
                            struct error *err);
void checkpoint_close(struct checkpoint *c); /* accepts NULL */

/* Only find the folder (for commands that need the tokenizer alone). buf holds n bytes. */
enum status checkpoint_locate(char *buf, size_t n, const char *path_or_name,
                              const char *const *cache_dirs, struct error *err);

/* Only the JSON files of a folder that checkpoint_locate() found, no tensors (count 0). */
enum status checkpoint_open_config(struct checkpoint **out, const char *dir, struct error *err);

const char *checkpoint_dir(const struct checkpoint *c);
struct json_object *checkpoint_config(const struct checkpoint *c); /* config.json, never NULL */
struct json_object *checkpoint_generation_config(const struct checkpoint *c); /* or NULL */
/* quantization_config of config.json, else quantize_config.json, else quant_config.json, else NULL */
struct json_object *checkpoint_quantization(const struct checkpoint *c);

size_t checkpoint_count(const struct checkpoint *c);
const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *c,
                                              size_t i); /* sorted by name */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c,
                                                const char *name); /* or NULL */
size_t checkpoint_bytes(const struct checkpoint *c); /* tensor bytes over all shards */
size_t checkpoint_n_files(const struct checkpoint *c);

#endif
