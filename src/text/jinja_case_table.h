/* jinja_case_table.h - characters that become several when their case changes. Generated data. */
#ifndef TEXT_JINJA_CASE_TABLE_H
#define TEXT_JINJA_CASE_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct jinja_case_row {
    uint32_t from;
    uint32_t upper[3], title[3]; /* ended by 0 when shorter */
};

extern const struct jinja_case_row jinja_case_table[];
extern const size_t jinja_case_table_n;

#endif
