//! `#[derive(Replicate)]` for `throng-replication`, which exports it: a struct's fields become the properties of a class,
//! in their order. The trait's documentation has an example.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Expr, Field, Fields, Ident, LitStr, Token};

/// Implements `throng_replication::Replicate`.
///
/// On the struct: `#[replicate(name = "...", cull_distance = METRES, delta, atomic, required, temporary)]`, all optional;
/// the name is the struct's unless given. On each field: `#[replicate(QUANTISER, position, condition = CONDITION,
/// default = VALUE)]` with an expression of type `Quantiser` first, or `#[replicate(skip)]` for what stays at home.
///
/// Beside the trait, each property gets a constant with its number: `Self::HEALTH` for a field `health`.
#[proc_macro_derive(Replicate, attributes(replicate))]
pub fn derive_replicate(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// What stands in a struct's attribute.
#[derive(Default)]
struct ClassOptions {
    name: Option<LitStr>,
    calls: Vec<Tokens>,
}

impl Parse for ClassOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            match key.to_string().as_str() {
                "name" => {
                    input.parse::<Token![=]>()?;
                    options.name = Some(input.parse()?);
                }
                "cull_distance" => {
                    input.parse::<Token![=]>()?;
                    let metres: Expr = input.parse()?;
                    options.calls.push(quote!(.cull_distance(#metres)));
                }
                "delta" | "atomic" | "required" | "temporary" => options.calls.push(quote!(.#key(true))),
                other => {
                    return Err(Error::new(
                        key.span(),
                        format!(
                            "unknown option `{other}`; known: name, cull_distance, delta, atomic, required, temporary"
                        ),
                    ));
                }
            }
            comma(input)?;
        }
        Ok(options)
    }
}

/// What stands in a field's attribute.
enum FieldOptions {
    Skip,
    Property { quantiser: Expr, calls: Vec<Tokens> },
}

impl Parse for FieldOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let quantiser: Expr = input.parse()?;
        if let Expr::Path(path) = &quantiser
            && path.path.is_ident("skip")
        {
            return Ok(Self::Skip);
        }
        let mut calls = Vec::new();
        comma(input)?;
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            match key.to_string().as_str() {
                "position" => calls.push(quote!(.world_position())),
                "condition" => {
                    input.parse::<Token![=]>()?;
                    let condition: Expr = input.parse()?;
                    calls.push(quote!(.condition(#condition)));
                }
                "default" => {
                    input.parse::<Token![=]>()?;
                    let value: Expr = input.parse()?;
                    calls.push(quote!(.default_value(#value)));
                }
                other => {
                    let message = format!("unknown option `{other}`; known: position, condition, default");
                    return Err(Error::new(key.span(), message));
                }
            }
            comma(input)?;
        }
        Ok(Self::Property { quantiser, calls })
    }
}

fn comma(input: ParseStream<'_>) -> syn::Result<()> {
    if input.is_empty() { Ok(()) } else { input.parse::<Token![,]>().map(|_| ()) }
}

fn field_options(field: &Field) -> syn::Result<FieldOptions> {
    let mut found = None;
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("replicate")) {
        if found.is_some() {
            return Err(Error::new(attribute.span(), "one `replicate` attribute for each field"));
        }
        found = Some(attribute.parse_args()?);
    }
    found.ok_or_else(|| {
        Error::new(
            field.span(),
            "say how the field is quantised: #[replicate(Quantiser::...)], or #[replicate(skip)]",
        )
    })
}

fn expand(input: &DeriveInput) -> syn::Result<Tokens> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.span(), "only a struct can be replicated"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(data.fields.span(), "fields need names: they become the properties' names"));
    };
    let mut options = ClassOptions::default();
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("replicate")) {
        options = attribute.parse_args()?;
    }
    let ident = &input.ident;
    let name = options.name.unwrap_or_else(|| LitStr::new(&ident.to_string(), ident.span()));
    let calls = options.calls;

    let (mut constants, mut properties) = (Vec::new(), Vec::new());
    let (mut sets, mut reads) = (Vec::new(), Vec::new());
    for field in &fields.named {
        let Some(field_name) = &field.ident else { continue };
        let FieldOptions::Property { quantiser, calls } = field_options(field)? else {
            reads.push(quote!(#field_name: ::core::default::Default::default()));
            continue;
        };
        let (number, text) = (properties.len(), field_name.to_string());
        let text = text.trim_start_matches("r#");
        let constant = format_ident!("{}", text.to_uppercase(), span = field_name.span());
        let doc = format!("Number of the property `{text}`.");
        constants.push(quote!(#[doc = #doc] #[allow(dead_code)] pub const #constant: usize = #number;));
        properties.push(quote!(.property(::throng_replication::Property::new(#text, #quantiser) #(#calls)*)));
        sets.push(quote!(server.set(handle, #number, ::core::clone::Clone::clone(&self.#field_name))?;));
        reads.push(quote! {
            #field_name: ::throng_replication::FromValue::from_value(replica.value(#number)?)?
        });
    }
    let (generics, arguments, wheres) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics #ident #arguments #wheres {
            #(#constants)*
        }

        impl #generics ::throng_replication::Replicate for #ident #arguments #wheres {
            fn class() -> ::core::result::Result<::throng_replication::Class, ::throng_replication::ClassError> {
                ::throng_replication::Class::builder(#name) #(#calls)* #(#properties)* .build()
            }

            fn write(
                &self,
                server: &mut ::throng_replication::Server,
                handle: ::throng_replication::Handle,
            ) -> ::core::result::Result<(), ::throng_replication::ObjectError> {
                #(#sets)*
                ::core::result::Result::Ok(())
            }

            fn read(replica: &::throng_replication::Replica) -> ::core::option::Option<Self> {
                ::core::option::Option::Some(Self { #(#reads),* })
            }
        }
    })
}
