#pragma once

#include <vector>

#include "engine/model/json_fields.h"
#include "engine/model/spec.h"

/// Parts of Hugging Face configurations that several families have. Errors name the key.
namespace lockstep::engine {

void read_activation(const JsonFields& fields, const char* key, ModelSpec& spec);

/// "attention_bias": of the q, k and v projections, and, if `of_output`, of the output projection.
void read_attention_bias(const JsonFields& fields, bool absent, bool of_output, ModelSpec& spec);

/// "sliding_window" in the layers that "layer_types" names or, where it is absent, in those for which `slides` is true.
void read_windows(const JsonFields& fields, bool (*slides)(const JsonFields& fields, std::size_t layer), ModelSpec& spec);
bool every_layer_slides(const JsonFields& fields, std::size_t layer);

/// A list of small whole numbers; empty if absent.
std::vector<std::size_t> layer_list(const JsonFields& fields, const char* key);

/// The part of a head that is rotated, where the configuration does not say.
void default_rotary_part(const JsonFields& fields, double part, ModelSpec& spec);

/// A positive scale, or `absent`.
float read_scale(const JsonFields& fields, const char* key, double absent);

/// Refuses a flag that is true: "KEY: is not supported in this family".
void refuse_flag(const JsonFields& fields, const char* key);

}  // namespace lockstep::engine
