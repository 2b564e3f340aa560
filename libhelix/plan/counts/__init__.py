"""Exact token and latent counts, from width, height, frames and samples alone: what `describe` declares.

qwen       Qwen2-VL, Qwen2.5-VL, Qwen3-VL: resized size, ViT patches, tokens, frames
internvl   tiles, tokens, frames                   llava    anyres_max_9, several images, video
dit        latents of Wan 2.1, HunyuanVideo, Open-Sora 2, DC-AE
audio      mel frames and tokens of Qwen2-Audio    compute  relative accelerator cost of a sequence

Every function computes what the published code computes, in its floats and with its rounding; where two
published codes differ, a policy names one. MediaError concerns one sample, UsageError the settings.
"""
